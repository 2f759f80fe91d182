"""Triton kernels of AdamW: run by Triton's interpreter on a CPU, and compiled for a GPU that is not
there (TRITON_INTERPRET=1, see the Makefile)."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWConfig, AdamWFp8Config
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.training.update_scalars import reads_update_scalars, set_update_scalars

pytestmark = pytest.mark.triton
SHAPES = {"wide": (4, 2048), "odd": (13, 77), "stacked": (2, 2, 512), "vector": (1000,)}
SHARED: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.9}
CONFIGS: dict[str, Any] = {
    "bf16": AdamWConfig(**SHARED, state_dtype="bfloat16"),
    "8bit": AdamW8bitConfig(**SHARED),
    "8bit-small-blocks": AdamW8bitConfig(**SHARED, block_size=64),
    "fp8": AdamWFp8Config(**SHARED),
}


def built(name: str, *, in_kernels: bool, dtype: torch.dtype = torch.float32) -> KernelAdamW:
    generator = torch.Generator().manual_seed(0)
    weights = {
        each: nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        for each, shape in SHAPES.items()
    }
    config = CONFIGS[name]
    optimizer: KernelAdamW = config.load_builder()(config, parameters=list(weights.items()))
    assert optimizer.kernels is None, "a CPU has none of its own"
    if in_kernels:
        optimizer.kernels = import_module("titanrun.components.optimizers.adamw_kernels")
    return optimizer


def weights_of(optimizer: KernelAdamW) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def step(optimizer: KernelAdamW, number: int, *, factor: float = 1.0) -> None:
    """A step with gradients of several magnitudes."""
    generator = torch.Generator().manual_seed(number)
    for weight in weights_of(optimizer):
        noise = torch.randn(weight.shape, generator=generator)
        slope = noise * torch.logspace(-3, 0, weight.size(-1)) * factor
        weight.grad = slope.to(weight.dtype)
    optimizer.step()


def compare(found: KernelAdamW, expected: KernelAdamW, *, rtol: float = 1e-6) -> None:
    for ours, theirs in zip(weights_of(found), weights_of(expected), strict=True):
        first, second = found.state[ours], expected.state[theirs]
        assert first.keys() == second.keys()
        differing = 0
        for key, value in first.items():
            if key.endswith("_codes") or value.dtype == torch.bfloat16:
                # a number between two codes may be rounded either way
                differing = max(differing, int((value != second[key]).sum()))
            else:
                torch.testing.assert_close(value, second[key], rtol=1e-5, atol=1e-8)
        assert differing <= max(2, 1e-3 * ours.numel())
        if differing == 0:
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
        else:
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_updates_are_those_of_the_formulas_in_python(name: str) -> None:
    found, expected = built(name, in_kernels=True), built(name, in_kernels=False)
    start = [weight.detach().clone() for weight in weights_of(found)]
    for number in range(3):
        step(found, number)
        step(expected, number)
        compare(found, expected)
    for before, weight in zip(start, weights_of(found), strict=True):
        assert not torch.equal(before, weight)


@pytest.mark.parametrize("name", ["8bit", "fp8"])
def test_weights_in_bf16_are_updated_in_fp32_and_rounded_once(name: str) -> None:
    found, expected = (built(name, in_kernels=each, dtype=torch.bfloat16) for each in (True, False))
    step(found, 0)
    step(expected, 0)
    compare(found, expected, rtol=0)


@pytest.mark.parametrize("name", ["bf16", "8bit", "fp8"])
def test_gradients_are_divided_as_they_are_read(name: str) -> None:
    found, expected = built(name, in_kernels=True), built(name, in_kernels=True)
    assert reads_update_scalars(found) and not reads_update_scalars(built(name, in_kernels=False))
    with set_update_scalars(found, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(0.0)):
        step(found, 0, factor=4.0)
    step(expected, 0)
    for ours, theirs in zip(weights_of(found), weights_of(expected), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["bf16", "8bit", "fp8"])
def test_a_refused_step_writes_nothing(name: str) -> None:
    optimizer = built(name, in_kernels=True)
    step(optimizer, 0)

    def numbers() -> list[Tensor]:
        return [
            value.clone()
            for weight in weights_of(optimizer)
            for key, value in [("weight", weight.detach()), *optimizer.state[weight].items()]
            if key != "step"
        ]

    before = numbers()
    with set_update_scalars(optimizer, grad_scale=None, found_inf=torch.tensor(1.0)):
        step(optimizer, 1, factor=float("nan"))
    assert all(torch.equal(old, new) for old, new in zip(before, numbers(), strict=True))


@pytest.mark.parametrize("name", ["bf16", "8bit", "fp8"])
def test_a_state_of_the_kernels_goes_on_in_python_and_back(name: str) -> None:
    found, expected = built(name, in_kernels=True), built(name, in_kernels=False)
    kernels = found.kernels
    for number, each in enumerate((kernels, None, kernels)):
        found.kernels = each
        step(found, number)
        step(expected, number)
    compare(found, expected)


def test_a_shard_has_the_codes_of_its_rows_in_the_whole_weight() -> None:
    kernels = import_module("titanrun.components.optimizers.adamw_kernels")
    formats = built("8bit", in_kernels=False).formats.values()
    tables = [each.build_table(torch.device("cpu")) for each in formats]
    whole, grad = torch.randn(7, 256), torch.randn(7, 256)
    numbers = {"betas": (0.9, 0.95), "eps": 1e-8, "lr": 1e-2, "weight_decay": 0.1}
    once = kernels.AdamWStep.from_group(numbers, steps=1, optimizer=None)

    def update(rows: slice) -> list[Tensor]:
        weight, codes, scales = whole.clone(), *states()
        means = [
            kernels.CodedMean(codes=code[rows], scales=scale[rows], max_value=1.0, table=table)
            for code, scale, table in zip(codes, scales, tables, strict=True)
        ]
        kernels.update_low_bit_adamw(weight[rows], grad[rows], *means, once)
        return [weight[rows], *(code[rows] for code in codes), *(scale[rows] for scale in scales)]

    def states() -> tuple[list[Tensor], list[Tensor]]:
        codes = [torch.full((7, 256), 127, dtype=torch.uint8) for _ in range(2)]
        return codes, [torch.ones(7, 8) for _ in range(2)]

    parts = [update(rows) for rows in (slice(0, 3), slice(3, 3), slice(3, 7))]
    for value, *shards in zip(update(slice(0, 7)), *parts, strict=True):
        assert torch.equal(value, torch.cat(shards))


class CountLargeOps(TorchDispatchMode):
    """Counts operations of torch on more than one number."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        large = [arg for arg in args if isinstance(arg, Tensor) and arg.numel() > 1]
        self.count += bool(large) and func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["bf16", "8bit", "fp8"])
def test_nothing_but_one_kernel_a_weight_touches_it(name: str) -> None:
    counts = []
    for in_kernels in (True, False):
        optimizer = built(name, in_kernels=in_kernels)
        step(optimizer, 0)
        for weight in weights_of(optimizer):
            weight.grad = torch.ones_like(weight)
        launches: list[Any] = []
        if in_kernels:
            optimizer.kernels = CountedKernels(optimizer.kernels, launches)
        with CountLargeOps() as counted:
            optimizer.step()
        counts.append((counted.count, len(launches)))
    assert counts[0] == (0, len(SHAPES))
    assert counts[1][0] > 10 * len(SHAPES)


class CountedKernels:
    """The module of kernels, which are counted and run outside of the count of torch's operations:
    the interpreter itself uses torch."""

    def __init__(self, kernels: Any, launches: list[Any]) -> None:
        self.kernels, self.launches = kernels, launches

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.kernels, name)
        return found if not name.startswith("update_") else lambda *_: self.launches.append(name)


def test_kernels_compile_for_hopper_without_spills() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_adamw_kernels.py")
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True
    )
    found = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == ["adamw", "map", "float8", "plain"]
    for name, registers, stack, local, widest in found:
        assert int(registers) <= 64 and int(stack) == int(local) == 0, name
        assert int(widest) == 4, f"{name} reads weights 16 bytes at a time"
