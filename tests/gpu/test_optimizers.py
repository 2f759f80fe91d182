"""Kernels of optimizers on a GPU against the formulas in Python on the CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.optimizer_state import (
    flatten_optimizer_state,
    load_optimizer_state,
)
from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWConfig, AdamWFp8Config
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.training.update_scalars import set_update_scalars

pytestmark = pytest.mark.gpu
SHAPES = {"wide": (64, 2048), "odd": (33, 77), "stacked": (3, 5, 512), "vector": (1000,)}
SHARED: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.9}
CONFIGS: dict[str, Any] = {
    "bf16": AdamWConfig(**SHARED, state_dtype="bfloat16"),
    "8bit": AdamW8bitConfig(**SHARED),
    "fp8": AdamWFp8Config(**SHARED),
}


def built(name: str, device: torch.device) -> KernelAdamW:
    generator = torch.Generator().manual_seed(0)
    weights = {
        each: nn.Parameter(torch.randn(shape, generator=generator).to(device))
        for each, shape in SHAPES.items()
    }
    config = CONFIGS[name]
    optimizer: KernelAdamW = config.load_builder()(config, parameters=list(weights.items()))
    return optimizer


def weights_of(optimizer: KernelAdamW) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def step(optimizer: KernelAdamW, number: int, *, factor: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(number)
    for weight in weights_of(optimizer):
        slope = torch.randn(weight.shape, generator=generator) * torch.logspace(
            -3, 0, weight.size(-1)
        )
        weight.grad = (slope * factor).to(weight.device)
    optimizer.step()


def compare(found: KernelAdamW, expected: KernelAdamW) -> None:
    for ours, theirs in zip(weights_of(found), weights_of(expected), strict=True):
        far = (ours.cpu() - theirs).abs()
        # where a number between two codes was rounded the other way
        assert (far > 1e-5).float().mean() < 2e-3
        assert far.max() < 2e-3
        for key, value in found.state[ours].items():
            other = expected.state[theirs][key]
            if key.endswith("_codes") or value.dtype == torch.bfloat16:
                assert (value.cpu() != other).float().mean() < 2e-3, key
            else:
                torch.testing.assert_close(value.cpu(), other, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_compute_what_the_formulas_in_python_do(
    name: str, device: torch.device, needs_gpu: None
) -> None:
    found, expected = built(name, device), built(name, torch.device("cpu"))
    assert found.kernels is not None and expected.kernels is None
    for number in range(3):
        step(found, number)
        step(expected, number)
    compare(found, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_grad_scale_clips_and_found_inf_leaves_everything(
    name: str, device: torch.device, needs_gpu: None
) -> None:
    found, expected = built(name, device), built(name, device)
    four, one = torch.tensor(4.0, device=device), torch.tensor(1.0, device=device)
    with set_update_scalars(found, grad_scale=four, found_inf=one - 1):
        step(found, 0, factor=4.0)
    step(expected, 0)

    def numbers(optimizer: KernelAdamW) -> list[Tensor]:
        return [
            value.clone()
            for weight in weights_of(optimizer)
            for key, value in [("weight", weight.detach()), *optimizer.state[weight].items()]
            if key != "step"
        ]

    before = numbers(found)
    assert all(map(torch.equal, before, numbers(expected)))
    with set_update_scalars(found, grad_scale=None, found_inf=one):
        step(found, 1, factor=float("nan"))
    assert all(map(torch.equal, before, numbers(found)))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_state_of_the_cpu_loads_on_the_gpu(name: str, device: torch.device) -> None:
    here, there = built(name, torch.device("cpu")), built(name, device)
    step(here, 0)
    names = dict(zip(map(id, weights_of(there)), SHAPES, strict=True))
    state = flatten_optimizer_state(
        nn.ParameterDict(dict(zip(SHAPES, weights_of(here), strict=True))), here
    )
    for weight, other in zip(weights_of(there), weights_of(here), strict=True):
        weight.data.copy_(other.data)
    model = nn.ParameterDict({names[id(weight)]: weight for weight in weights_of(there)})
    load_optimizer_state(model, there, {key: value.clone() for key, value in state.items()})
    step(here, 1)
    step(there, 1)
    compare(there, here)


def test_an_update_takes_one_launch_a_weight(device: torch.device, needs_gpu: None) -> None:
    for name in CONFIGS:
        optimizer = built(name, device)
        step(optimizer, 0)
        for weight in weights_of(optimizer):
            weight.grad = torch.ones_like(weight)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
        ) as profile:
            optimizer.step()
        launches = sum(event.count for event in profile.key_averages())
        assert len(SHAPES) <= launches <= len(SHAPES) + 20
