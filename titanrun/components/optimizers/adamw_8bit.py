"""AdamW with 8-bit running means: a code per number, and a scale per block of neighbors.

The number formats are those of torchao.optim: a dynamic map of 256 values
(https://arxiv.org/abs/2110.02861), or float8 (e4m3). Blocks are within the rows of a weight, and
their size depends on its global shape only, so that ranks with shards have the same blocks as one
with the whole weight. Checkpoints hold codes and scales unchanged.

Shapes: R rows of the last dim, C columns, K blocks of a row, S numbers of a block.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWFp8Config, LowBitConfig
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.components.optimizers.param_groups import build_param_groups
from titanrun.config.problems import problem_error
from titanrun.distributed.dtensor import new_zeros_with_columns, to_local

# tensor parallelism can split rows into this number of parts without splitting a block
PARTS = 8
# a smaller block would not be worth its scale
SMALLEST_BLOCK = 8
# numbers in fp32 at the same time while a weight is updated
NUMBERS_AT_ONCE = 2**18
MAP_POWERS = 7
# as in torchao: a block of zeros has a scale, too
SMALLEST_SCALE = 1e-12
MEANS = ("exp_avg", "exp_avg_sq")


class LowBitFormat(Protocol):
    """Format of 8-bit codes for numbers relative to the largest of their block."""

    max_value: float

    def encode(self, scaled: Tensor) -> Tensor:
        """Return codes (uint8) of numbers between -max_value and max_value."""
        ...

    def decode(self, codes: Tensor) -> Tensor:
        """Return the numbers (fp32) of codes."""
        ...

    def build_table(self, device: torch.device) -> Tensor:
        """Return the number of each code, for a kernel, then the limits between them if needed."""
        ...


class DynamicQuantMap:
    """Map of 256 values that are denser near zero (https://arxiv.org/abs/1511.04561).

    A number is rounded to the nearest value.
    """

    max_value = 1.0

    def __init__(self, *, is_signed: bool) -> None:
        self.is_signed = is_signed

    def encode(self, scaled: Tensor) -> Tensor:
        """Return codes (uint8) of numbers between -1 and 1."""
        _, between = build_dynamic_map(self.is_signed, scaled.device)
        return torch.bucketize(scaled, between, right=True, out_int32=True).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the numbers (fp32) of codes."""
        values, _ = build_dynamic_map(self.is_signed, codes.device)
        return values[codes.int()]

    def build_table(self, device: torch.device) -> Tensor:
        """Return the values of the map, then the limits between them."""
        return build_dynamic_table(self.is_signed, device)


@cache
def build_dynamic_map(is_signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values of the map, and the limits between them."""
    values = torch.tensor(sorted(compute_map_values(is_signed)), dtype=torch.float64)
    return values.float().to(device), ((values[1:] + values[:-1]) / 2).float().to(device)


@cache
def build_dynamic_table(is_signed: bool, device: torch.device) -> Tensor:
    """Return the values of the map, then the limits between them."""
    return torch.cat(build_dynamic_map(is_signed, device))


def compute_map_values(is_signed: bool) -> list[float]:
    """Return the values of the map.

    They are evenly spaced between a tenth of each power of ten from 1e-6 to 1 and that power, more
    values for larger powers, plus zero and one.
    """
    values = [0.0, 1.0]
    for bits in range(MAP_POWERS):
        limits = torch.linspace(0.1, 1, 2 ** (bits if is_signed else bits + 1) + 1)
        positive = (10.0 ** (bits + 1 - MAP_POWERS) * (limits[:-1] + limits[1:]) / 2).tolist()
        values += [*positive, *(-value for value in positive)] if is_signed else positive
    return values


class Float8Format:
    """e4m3 format: 3 bits of fraction.

    Codes are stored as integers, which every back end can send and every file can hold.
    """

    max_value = torch.finfo(torch.float8_e4m3fn).max

    def encode(self, scaled: Tensor) -> Tensor:
        """Return codes (uint8) of numbers in the range of e4m3."""
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the numbers (fp32) of codes."""
        return codes.view(torch.float8_e4m3fn).float()

    def build_table(self, device: torch.device) -> Tensor:
        """Return the numbers of all codes."""
        return build_float8_table(device)


@cache
def build_float8_table(device: torch.device) -> Tensor:
    """Return the number of each e4m3 code."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)


class LowBitAdamW(KernelAdamW):
    """AdamW with 8-bit states, computed in fp32 on one slice of a weight at a time.

    The states of weights with short rows stay in fp32.

    Args:
        groups: Parameters with their settings.
        defaults: Settings of all groups.
        formats: Formats of the running means of gradients and of their squares.
        block_size: Maximum number of values that share a scale.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        defaults: dict[str, Any],
        *,
        formats: tuple[LowBitFormat, LowBitFormat],
        block_size: int,
    ) -> None:
        super().__init__(groups, defaults)
        self.formats = dict(zip(MEANS, formats, strict=True))
        self.block_size = block_size
        for group in self.param_groups:
            for parameter, name in zip(group["params"], group["param_names"], strict=True):
                check_blocks_unsplit(
                    parameter, name, compute_block_size(parameter.shape, block_size)
                )

    def build_initial_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter before its first update."""
        state = {"step": torch.zeros(())}
        block = compute_block_size(parameter.shape, self.block_size)
        for mean in MEANS:
            if block is None:
                state[mean] = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            else:
                state[f"{mean}_codes"] = torch.zeros_like(
                    parameter, dtype=torch.uint8, requires_grad=False
                )
                state[f"{mean}_scales"] = new_zeros_with_columns(
                    parameter, to_local(parameter).size(-1) // block, parameter.size(-1) // block
                )
        return state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter with a gradient."""
        assert closure is None, "gradients are there before a step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        if not self.state[parameter]:
            self.state[parameter] = self.build_initial_state(parameter)
        state = self.state[parameter]
        state["step"] += 1
        beta1, beta2 = group["betas"]
        steps = state["step"].item()
        if self.kernels is not None:
            self.kernels.update_low_bit_adamw(
                *map(to_local, (parameter, gradient)),
                *(self._get_stored_mean(state, mean) for mean in MEANS),
                self.kernels.AdamWStep.from_group(group, steps=steps, optimizer=self),
            )
            return
        parts = {
            key: view_as_matrix(to_local(value)) for key, value in state.items() if key != "step"
        }
        weight_RC, gradient_RC = (
            view_as_matrix(to_local(parameter)),
            view_as_matrix(to_local(gradient)),
        )
        for rows in iter_row_slices(weight_RC):
            piece = {key: part[rows] for key, part in parts.items()}
            slope = gradient_RC[rows].float()
            mean = self._dequantize_mean(piece, MEANS[0]).lerp_(slope, 1 - beta1)
            square = self._dequantize_mean(piece, MEANS[1]).lerp_(slope.square(), 1 - beta2)
            self._quantize_mean(piece, MEANS[0], mean)
            self._quantize_mean(piece, MEANS[1], square)
            root = square.sqrt_().div_((1 - beta2**steps) ** 0.5).add_(group["eps"])
            weight = weight_RC[rows].float() * (1 - group["lr"] * group["weight_decay"])
            weight_RC[rows] = weight.addcdiv_(
                mean, root, value=-group["lr"] / (1 - beta1**steps)
            ).to(weight_RC.dtype)

    def _get_stored_mean(self, state: dict[str, Tensor], mean: str) -> Any:
        """Return this rank's part of a running mean as the kernel reads it."""
        if mean in state:
            return to_local(state[mean])
        codes, scales = (to_local(state[f"{mean}_{part}"]) for part in ("codes", "scales"))
        low_bit_format = self.formats[mean]
        return self.kernels.CodedMean(
            codes=codes,
            scales=scales,
            max_value=low_bit_format.max_value,
            table=low_bit_format.build_table(codes.device),
        )

    def _dequantize_mean(self, piece: dict[str, Tensor], mean: str) -> Tensor:
        """Return a copy of a running mean in fp32."""
        if mean in piece:
            return piece[mean].clone()
        scales_RK = piece[f"{mean}_scales"]
        numbers_RKS = (
            self.formats[mean]
            .decode(piece[f"{mean}_codes"])
            .unflatten(-1, (scales_RK.size(-1), -1))
        )
        numbers_RC: Tensor = (numbers_RKS * scales_RK.unsqueeze(-1)).flatten(-2)
        return numbers_RC

    def _quantize_mean(self, piece: dict[str, Tensor], mean: str, numbers_RC: Tensor) -> None:
        """Store a running mean."""
        if mean in piece:
            piece[mean].copy_(numbers_RC)
            return
        low_bit_format, scales_RK = self.formats[mean], piece[f"{mean}_scales"]
        numbers_RKS = numbers_RC.unflatten(-1, (scales_RK.size(-1), -1))
        largest_RK = numbers_RKS.abs().amax(-1).clamp_(min=SMALLEST_SCALE)
        scales_RK.copy_(largest_RK / low_bit_format.max_value)
        piece[f"{mean}_codes"].copy_(
            low_bit_format.encode((numbers_RKS / scales_RK.unsqueeze(-1)).flatten(-2))
        )


def compute_block_size(shape: torch.Size, block_size: int) -> int | None:
    """Return the number of values of a row that share a scale, None for states in fp32.

    It depends on the global shape of the weight only.
    """
    if len(shape) < 2 or shape[-1] % PARTS:
        return None
    width = shape[-1] // PARTS
    # the largest power of two that divides it
    block = min(block_size, width & -width)
    return block if block >= SMALLEST_BLOCK else None


def check_blocks_unsplit(parameter: nn.Parameter, name: str, block: int | None) -> None:
    """Raise a problem if ranks that split the rows of a weight would share a block."""
    columns = to_local(parameter).size(-1) if parameter.ndim else 0
    if block is not None and columns % block:
        message = (
            f"each rank has {columns} columns of {name}, "
            f"which is not divisible by the block size {block}"
        )
        hint = (
            "use tensor_parallel_degree 2, 4 or 8, "
            "or optimizer.name: adamw with state_dtype: bfloat16"
        )
        raise problem_error("conflict", message, path=("optimizer", "name"), hint=hint)


def view_as_matrix(part: Tensor) -> Tensor:
    """Return a view of a tensor as one matrix; a scalar or vector becomes one row."""
    return part.view(-1, part.size(-1)) if part.ndim > 1 else part.view(1, -1)


def iter_row_slices(weight_RC: Tensor) -> Iterator[slice]:
    """Return slices of rows, each small enough to be in fp32 several times over."""
    rows = max(1, NUMBERS_AT_ONCE // max(1, weight_RC.size(-1)))
    return (slice(start, start + rows) for start in range(0, weight_RC.size(0), rows))


def build_adamw_8bit(
    config: AdamW8bitConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]
) -> Optimizer:
    """Build AdamW with codes from dynamic maps."""
    return build_low_bit_adamw(
        config, parameters, (DynamicQuantMap(is_signed=True), DynamicQuantMap(is_signed=False))
    )


def build_adamw_fp8(
    config: AdamWFp8Config, *, parameters: Iterable[tuple[str, nn.Parameter]]
) -> Optimizer:
    """Build AdamW with codes in float8."""
    return build_low_bit_adamw(config, parameters, (Float8Format(), Float8Format()))


def build_low_bit_adamw(
    config: LowBitConfig,
    parameters: Iterable[tuple[str, nn.Parameter]],
    formats: tuple[LowBitFormat, LowBitFormat],
) -> Optimizer:
    """Build the optimizer over all named parameters."""
    defaults = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    return LowBitAdamW(
        build_param_groups(config, parameters),
        defaults,
        formats=formats,
        block_size=config.block_size,
    )
