"""Kernels of optimizers against the formulas of torch and in Python, both on the CPU."""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.components.checkpoints.optimizer_state import (
    flatten_optimizer_state,
    load_optimizer_state,
)
from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWConfig, AdamWFp8Config
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.distributed.device import CPU
from titanrun.training.update_scalars import reads_update_scalars, set_update_scalars

SHAPES = {"wide": (64, 2048), "odd": (33, 77), "stacked": (3, 5, 512), "vector": (1000,)}
SHARED: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.9}
SMALL_STATES: dict[str, Any] = {
    "bf16": AdamWConfig(**SHARED, state_dtype="bfloat16"),
    "8bit": AdamW8bitConfig(**SHARED),
    "fp8": AdamWFp8Config(**SHARED),
}
CONFIGS = {"fp32": AdamWConfig(**SHARED, implementation="fused"), **SMALL_STATES}
IN_PYTHON = {**CONFIGS, "fp32": AdamWConfig(**SHARED, implementation="for-loop")}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def built(
    name: str, device: torch.device, *, configs: dict[str, Any] = CONFIGS, in_kernels: bool = False
) -> Optimizer:
    """An optimizer over weights of all shapes; `in_kernels` on a CPU too, by the interpreter."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        each: nn.Parameter(torch.randn(shape, generator=generator).to(device))
        for each, shape in SHAPES.items()
    }
    config = configs[name]
    optimizer: Optimizer = config.load_builder()(config, parameters=list(weights.items()))
    if in_kernels and isinstance(optimizer, KernelAdamW):
        if device.type == "cpu":
            optimizer.kernels = import_kernels()
        assert optimizer.kernels is not None
    return optimizer


def import_kernels() -> Any:
    return import_module("titanrun.components.optimizers.adamw_kernels")


def weights_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def draw_gradients(number: int, *, factor: float = 1.0) -> list[Tensor]:
    """The gradients of a step, of several magnitudes."""
    generator = torch.Generator().manual_seed(number)
    return [
        torch.randn(shape, generator=generator) * torch.logspace(-3, 0, shape[-1]) * factor
        for shape in SHAPES.values()
    ]


def step(optimizer: Optimizer, number: int, *, factor: float = 1.0) -> None:
    gradients = draw_gradients(number, factor=factor)
    for weight, gradient in zip(weights_of(optimizer), gradients, strict=True):
        weight.grad = gradient.to(weight.device)
    optimizer.step()


def compare(found: Optimizer, expected: Optimizer) -> None:
    """Compare weights and states, also of different devices."""
    for ours, theirs in zip(weights_of(found), weights_of(expected), strict=True):
        compare_weights(ours, theirs)
        for key, value in found.state[ours].items():
            compare_states(key, value, expected.state[theirs][key])


def compare_weights(ours: Tensor, theirs: Tensor) -> None:
    far = (ours.cpu() - theirs.cpu()).abs()
    # where a number between two codes was rounded the other way
    assert (far > 1e-5).float().mean() < 2e-3
    assert far.max() < 2e-3


def compare_states(key: str, value: Tensor, other: Tensor) -> None:
    assert value.dtype == other.dtype
    if key.endswith("_codes") or value.dtype == torch.bfloat16:
        assert (value.cpu() != other.cpu()).float().mean() < 2e-3, key
    else:
        torch.testing.assert_close(value.cpu(), other.cpu(), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("gradients", DTYPES)
@pytest.mark.parametrize("states", DTYPES)
def test_adamw_kernel_equals_reference(
    states: str, gradients: str, kernel_device: torch.device
) -> None:
    kernels, dtype = import_kernels(), DTYPES[states]
    expected = built(states, CPU, configs=IN_PYTHON)
    weights = [weight.detach().to(kernel_device, copy=True) for weight in weights_of(expected)]
    means, squares = ([torch.zeros_like(weight, dtype=dtype) for weight in weights] for _ in "ms")
    for number in range(1, 4):
        rounded = [each.to(DTYPES[gradients]) for each in draw_gradients(number)]
        for weight, gradient in zip(weights_of(expected), rounded, strict=True):
            weight.grad = gradient.float()
        expected.step()
        once = kernels.AdamWStep.from_group(
            expected.param_groups[0], steps=float(number), optimizer=None
        )
        for weight, gradient, *state in zip(weights, rounded, means, squares, strict=True):
            kernels.update_adamw(weight, gradient.to(kernel_device), *state, once)
    for index, theirs in enumerate(weights_of(expected)):
        compare_weights(weights[index], theirs)
        compare_states("exp_avg", means[index], expected.state[theirs]["exp_avg"])
        compare_states("exp_avg_sq", squares[index], expected.state[theirs]["exp_avg_sq"])


@pytest.mark.parametrize("name", ["8bit", "fp8"])
def test_low_bit_kernel_equals_reference(name: str, kernel_device: torch.device) -> None:
    found, expected = built(name, kernel_device, in_kernels=True), built(name, CPU)
    for number in range(3):
        step(found, number)
        step(expected, number)
    compare(found, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_optimizer_of_a_recipe_equals_reference(name: str, device: torch.device) -> None:
    found, expected = built(name, device), built(name, CPU, configs=IN_PYTHON)
    # on a GPU, each has a kernel; on a CPU only torch has
    assert device.type == "cpu" or reads_update_scalars(found)
    for number in range(3):
        step(found, number)
        step(expected, number)
    compare(found, expected)


def numbers_of(optimizer: Optimizer) -> list[Tensor]:
    """Copies of weights and states."""
    return [
        value.clone()
        for weight in weights_of(optimizer)
        for key, value in [("weight", weight.detach()), *optimizer.state[weight].items()]
        if key != "step"
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_grad_scale_clips(name: str, kernel_device: torch.device) -> None:
    found, expected = (built(name, kernel_device, in_kernels=True) for _ in range(2))
    four, none = (torch.tensor(each, device=kernel_device) for each in (4.0, 0.0))
    with set_update_scalars(found, grad_scale=four, found_inf=none):
        step(found, 0, factor=4.0)
    step(expected, 0)
    # a power of two, whose quotients are exact
    assert all(map(torch.equal, numbers_of(found), numbers_of(expected)))


@pytest.mark.parametrize("name", CONFIGS)
def test_found_inf_leaves_everything(name: str, kernel_device: torch.device) -> None:
    optimizer = built(name, kernel_device, in_kernels=True)
    step(optimizer, 0)
    before = numbers_of(optimizer)
    refused = torch.tensor(1.0, device=kernel_device)
    with set_update_scalars(optimizer, grad_scale=None, found_inf=refused):
        step(optimizer, 1, factor=float("nan"))
    assert all(map(torch.equal, before, numbers_of(optimizer)))
    step(optimizer, 1)
    assert not any(map(torch.equal, before, numbers_of(optimizer)))


@pytest.mark.parametrize("name", CONFIGS)
def test_cpu_state_loads_on_gpu(name: str, device: torch.device) -> None:
    here, there = built(name, CPU), built(name, device)
    step(here, 0)
    by_name = dict(zip(SHAPES, weights_of(here), strict=True))
    state = flatten_optimizer_state(nn.ParameterDict(by_name), here)
    for weight, other in zip(weights_of(there), weights_of(here), strict=True):
        weight.data.copy_(other.data)
    model = nn.ParameterDict(dict(zip(SHAPES, weights_of(there), strict=True)))
    load_optimizer_state(model, there, {key: value.clone() for key, value in state.items()})
    step(here, 1)
    step(there, 1)
    compare(there, here)


@pytest.mark.gpu
def test_an_update_takes_one_launch_a_weight(gpu: torch.device) -> None:
    """No CPU twin: nothing is launched; tests/components/optimizers counts calls of kernels."""
    for name in SMALL_STATES:
        optimizer = built(name, gpu)
        step(optimizer, 0)
        for weight in weights_of(optimizer):
            weight.grad = torch.ones_like(weight)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
        ) as profile:
            optimizer.step()
            torch.accelerator.synchronize()
        names = [event.name.lower() for event in profile.events()]
        assert sum("adamw_kernel" in each for each in names) == len(SHAPES), names
        assert sum("launch" in each for each in names) <= len(SHAPES) + 20, names
