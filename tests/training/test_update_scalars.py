"""Clipping and refusing updates inside torch's fused kernel, against separate passes."""

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.optimizers.adamw_8bit import build_adamw_8bit
from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWConfig, MuonConfig
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.components.optimizers.muon import build_muon
from titanrun.distributed.grad_norm import clip_grads_with_norm_
from titanrun.training.update_scalars import (
    accepts_update_scalars,
    compute_grad_divisor,
    reads_update_scalars,
    set_update_scalars,
)


def trained(*, fused: bool, max_norm: float, bad_step: int | None = None) -> list[Tensor]:
    """Weights and states after five steps."""
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(64, 32, generator=generator)) for _ in range(3)]
    optimizer = AdamW(weights, lr=1e-2, weight_decay=0.1, fused=True)
    latch = torch.zeros(())
    for step in range(5):
        for weight in weights:
            weight.grad = torch.randn(64, 32, generator=generator)
        norm = torch.linalg.vector_norm(torch.stack([weight.grad for weight in weights]))  # type: ignore[misc]
        if step == bad_step:
            latch = torch.ones(())
        if fused:
            divisor = compute_grad_divisor(norm, max_norm)
            with set_update_scalars(optimizer, grad_scale=divisor, found_inf=latch):
                optimizer.step()
        else:
            clip_grads_with_norm_(weights, total_norm=norm, max_norm=max_norm)
            if step == bad_step:
                break
            optimizer.step()
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
    states = [value for weight in weights for value in optimizer.state[weight].values()]
    return [*(weight.detach() for weight in weights), *states]


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_the_kernel_clips_as_a_separate_pass_does(max_norm: float) -> None:
    for found, expected in zip(
        trained(fused=True, max_norm=max_norm), trained(fused=False, max_norm=max_norm), strict=True
    ):
        # where nothing is clipped, gradients are divided by 1
        tolerance = 0.0 if max_norm == 1e6 else 1e-5
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 1e-2)


def test_a_refused_step_and_all_after_it_change_nothing() -> None:
    found = trained(fused=True, max_norm=1e6, bad_step=2)
    for tensor, expected in zip(found, trained(fused=False, max_norm=1e6, bad_step=2), strict=True):
        assert torch.equal(tensor, expected)


def test_only_fused_kernels_on_accelerators_take_scalars() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    fused, plain = AdamW(weights, fused=True), AdamW(weights, foreach=True)
    assert [reads_update_scalars(each) for each in (fused, plain, SGD(weights))] == [
        True,
        False,
        False,
    ]
    muon = build_muon(MuonConfig(), parameters=[("w", nn.Parameter(torch.zeros(4, 4)))])
    for group in muon.param_groups:
        group["fused"] = True
    assert isinstance(muon, AdamW) and not reads_update_scalars(muon)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [accepts_update_scalars(fused, device) for device in (gpu, cpu)] == [True, False]


def test_an_error_takes_the_scalars_away_too() -> None:
    optimizer = AdamW([nn.Parameter(torch.zeros(2))], fused=True)
    with (
        pytest.raises(ZeroDivisionError),
        set_update_scalars(optimizer, grad_scale=None, found_inf=torch.zeros(())),
    ):
        assert not hasattr(optimizer, "grad_scale")
        1 / 0  # noqa: B018
    assert not hasattr(optimizer, "found_inf")


def test_kernels_are_for_parts_on_accelerators_that_are_in_one_piece() -> None:
    weights = [("w", nn.Parameter(torch.zeros(4, 64)))]
    small = AdamWConfig(state_dtype="bfloat16")
    low_bit, bf16 = (
        build_adamw_8bit(AdamW8bitConfig(), parameters=weights),
        build_adamw(small, parameters=weights),
    )
    assert isinstance(low_bit, KernelAdamW) and isinstance(bf16, KernelAdamW)
    gpu = torch.empty(4, 64, device="meta")
    parts = [gpu, gpu.bfloat16(), gpu.t(), torch.empty(4, 64)]
    assert [low_bit.has_kernel(part) for part in parts] == [True, True, False, False]
    assert [bf16.has_kernel(part) for part in parts] == [True, False, False, False]
    # so that gradients are clipped in a pass of their own
    assert not reads_update_scalars(low_bit) and not reads_update_scalars(bf16)
