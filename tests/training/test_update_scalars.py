"""Clipping and refusing updates inside torch's fused kernel, against separate passes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.optim import SGD, AdamW

from tests.distributed.gloo_ranks import call_on_ranks
from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.optimizers.adamw_8bit import build_adamw_8bit
from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWConfig, MuonConfig
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.components.optimizers.muon import build_muon
from titanrun.distributed.dtensor import full_tensor, is_sharded, to_local
from titanrun.distributed.grad_norm import clip_grads_with_norm_
from titanrun.training.update_scalars import (
    accepts_update_scalars,
    compute_grad_divisor,
    reads_update_scalars,
    set_update_scalars,
)

SMALL_STATES = AdamWConfig(state_dtype="bfloat16")


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


def update_on_rank() -> dict[str, Tensor]:
    """Weights and states of a rank after a clipped step, and after one that is refused."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(0)
    # an uneven split, and copies on every rank
    whole = {"w": torch.randn(7, 4, generator=generator), "b": torch.randn(4, generator=generator)}
    placed = {
        name: nn.Parameter(distribute_tensor(value, mesh, [Shard(0)] if name == "w" else None))
        for name, value in whole.items()
    }
    optimizer = build_adamw(AdamWConfig(implementation="fused"), parameters=placed.items())
    found = {}
    for step, found_inf in enumerate((0.0, 1.0)):
        for name, weight in placed.items():
            gradient = torch.randn(whole[name].shape, generator=generator)
            if name == "w":
                weight.grad = distribute_tensor(gradient, mesh, [Shard(0)])
            else:
                # as of a weight that all ranks have, whose summands are added up first
                part = gradient / mesh.size()
                weight.grad = DTensor.from_local(part, mesh, [Partial()], run_check=False)
        with set_update_scalars(
            optimizer, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(found_inf)
        ):
            optimizer.step()
        for name, weight in placed.items():
            state = optimizer.state[weight]
            assert is_sharded(state["exp_avg"]) and state["step"] == 1
            found[f"{name} {step}"] = full_tensor(weight.detach())
            found[f"{name} {step} mean"] = full_tensor(state["exp_avg"])
    assert reads_update_scalars(optimizer)
    assert_kernels_get_parts("w", placed["w"])
    return found


def assert_kernels_get_parts(name: str, weight: nn.Parameter) -> None:
    """Kernels of Triton, of which there is none here, see weights as flat memory of this rank."""
    optimizer, given = build_adamw(SMALL_STATES, parameters=[(name, weight)]), []
    optimizer.kernels = SimpleNamespace(  # type: ignore[attr-defined]
        AdamWStep=SimpleNamespace(from_group=lambda *_, **__: None),
        update_adamw=lambda *tensors: given.extend(tensors[:4]),
    )
    optimizer.step()
    own = to_local(weight.detach()).shape
    assert [(is_sharded(each), each.shape) for each in given] == [(False, own)] * 4


def test_kernels_clip_and_refuse_updates_of_sharded_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (alone,) = call_on_ranks(1, update_on_rank, tmp_path / "one")
    for found in call_on_ranks(2, update_on_rank, tmp_path / "two"):
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value)
        for name in ("w", "b"):
            assert torch.equal(found[f"{name} 0"], found[f"{name} 1"])
            assert torch.equal(found[f"{name} 0 mean"], found[f"{name} 1 mean"])


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
    # the meta device stands for an accelerator
    gpu, cpu = torch.device("meta"), torch.device("cpu")
    assert not accepts_update_scalars(fused, cpu)
    assert accepts_update_scalars(AdamW([torch.zeros(2, device=gpu)], fused=True), gpu)


def test_weights_in_host_memory_take_no_scalars_of_an_accelerator() -> None:
    """torch copies a scalar to the host without waiting for it, and the kernel there reads it."""
    fused = AdamW([nn.Parameter(torch.zeros(2))], fused=True)
    assert reads_update_scalars(fused)
    assert not accepts_update_scalars(fused, torch.device("meta"))


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
    low_bit, bf16 = (
        build_adamw_8bit(AdamW8bitConfig(), parameters=weights),
        build_adamw(SMALL_STATES, parameters=weights),
    )
    assert isinstance(low_bit, KernelAdamW) and isinstance(bf16, KernelAdamW)
    gpu = torch.empty(4, 64, device="meta")
    parts = [gpu, gpu.bfloat16(), gpu.t(), torch.empty(4, 64)]
    assert [low_bit.has_kernel(part) for part in parts] == [True, True, False, False]
    assert [bf16.has_kernel(part) for part in parts] == [True, False, False, False]
    # so that gradients are clipped in a pass of their own
    assert not reads_update_scalars(low_bit) and not reads_update_scalars(bf16)
