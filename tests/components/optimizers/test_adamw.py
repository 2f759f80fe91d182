from typing import Literal

import pytest
import torch
from torch import nn

from titanrun.components.optimizers.adamw import build_adam, build_adamw
from titanrun.components.optimizers.config import AdamConfig, AdamWConfig

Kernel = Literal["fused", "foreach", "for-loop"]
KERNELS: list[Kernel] = ["fused", "foreach", "for-loop"]


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 4)).to(dtype)


def stepped(
    trained: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5
) -> list[torch.Tensor]:
    for step in range(steps):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(
            next(trained.parameters()).dtype
        )
        trained(inputs).square().mean().backward()
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in trained.parameters()]


def kernel_of(optimizer: torch.optim.Optimizer) -> list[tuple[bool, bool]]:
    return [(bool(group["fused"]), bool(group["foreach"])) for group in optimizer.param_groups]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_those_of_torchs_adamw_bit_for_bit(kernel: Kernel, dtype: torch.dtype) -> None:
    config = AdamWConfig(
        lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3, implementation=kernel
    )
    ours, theirs = model(dtype), model(dtype)
    optimizer = build_adamw(config, parameters=list(ours.named_parameters()))
    torchs = torch.optim.AdamW(
        theirs.parameters(),
        lr=1e-2,
        betas=(0.8, 0.9),
        eps=1e-6,
        weight_decay=0.3,
        fused=kernel == "fused",
        foreach=kernel == "foreach",
    )
    # kernels may round alike on some processors
    assert kernel_of(optimizer) == kernel_of(torchs)
    for one, other in zip(stepped(ours, optimizer), stepped(theirs, torchs), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kernel", KERNELS)
def test_steps_of_adam_are_those_of_torchs_bit_for_bit(kernel: Kernel) -> None:
    config = AdamConfig(
        lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3, implementation=kernel
    )
    ours, theirs = model(torch.float32), model(torch.float32)
    optimizer = build_adam(config, parameters=list(ours.named_parameters()))
    torchs = torch.optim.Adam(
        theirs.parameters(),
        lr=1e-2,
        betas=(0.8, 0.9),
        eps=1e-6,
        weight_decay=0.3,
        fused=kernel == "fused",
        foreach=kernel == "foreach",
    )
    # kernels may round alike on some processors
    assert kernel_of(optimizer) == kernel_of(torchs)
    for one, other in zip(stepped(ours, optimizer), stepped(theirs, torchs), strict=True):
        assert torch.equal(one, other)


def test_the_update_follows_the_paper_in_float64() -> None:
    config = AdamWConfig(lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3)
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = build_adamw(config, parameters=[("weight", weight)])
    expected, mean, square = (
        weight.detach().double(),
        torch.zeros(2).double(),
        torch.zeros(2).double(),
    )
    for step in range(1, 4):
        weight.grad = torch.tensor([0.5, -0.25]) * step
        gradient = weight.grad.double()
        optimizer.step()
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        expected = expected * (1 - 1e-2 * 0.3) - 1e-2 * (mean / (1 - 0.8**step)) / (
            (square / (1 - 0.9**step)).sqrt() + 1e-6
        )
    assert weight.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_one_group_holds_every_parameter_by_name() -> None:
    given = model()
    optimizer = build_adamw(AdamWConfig(), parameters=list(given.named_parameters()))
    assert [group["param_names"] for group in optimizer.param_groups] == [
        list(dict(given.named_parameters()))
    ]
    assert optimizer.param_groups[0]["weight_decay"] == AdamWConfig().weight_decay


def test_hooks_around_a_step_still_run() -> None:
    given = model()
    optimizer = build_adamw(AdamWConfig(), parameters=list(given.named_parameters()))
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    stepped(given, optimizer, steps=1)
    assert seen == ["before", "after"]
