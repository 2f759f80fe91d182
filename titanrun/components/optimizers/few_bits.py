"""AdamW whose two running means have 8 bits each: a code for every number, and a scale for each block of neighbours.

The number formats are those of torchao.optim: a dynamic map of 256 values (https://arxiv.org/abs/2110.02861), or float8 (e4m3). Blocks lie
within the rows of a weight and their size follows from its whole shape, so that ranks that hold parts of it have the same blocks as one
that holds all of it; checkpoints hold codes and scales as they are.

Shapes: R rows of the last dim, C columns, K blocks of a row, S numbers of a block.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from inspect import unwrap
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWFp8Config, FewBitsConfig
from titanrun.components.optimizers.groups import grouped
from titanrun.config.problems import fail
from titanrun.distributed.shards import own_part, with_other_columns

# tensor parallelism cuts rows into so many parts at least, before it cuts a block
PARTS = 8
# a block of fewer numbers would not be worth its scale
SMALLEST_BLOCK = 8
# numbers that are in fp32 at one time while a weight is updated
NUMBERS_AT_ONCE = 2**18
MAP_POWERS = 7
# as in torchao: a block of zeros has a scale too
SMALLEST_SCALE = 1e-12
MEANS = ("exp_avg", "exp_avg_sq")


class Format(Protocol):
    """How numbers become codes of 8 bits, relative to the largest of their block."""

    largest: float

    def encode(self, shares: Tensor) -> Tensor:
        """Codes (uint8) of numbers between -largest and largest."""
        ...

    def decode(self, codes: Tensor) -> Tensor:
        """The numbers (fp32) that the codes stand for."""
        ...


class DynamicMap:
    """256 values that lie closer together near zero (https://arxiv.org/abs/1511.04561): a number takes the nearest of them."""

    largest = 1.0

    def __init__(self, *, signed: bool) -> None:
        self.signed = signed

    def encode(self, shares: Tensor) -> Tensor:
        _, between = dynamic_map(self.signed, shares.device)
        return torch.bucketize(shares, between, right=True, out_int32=True).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        values, _ = dynamic_map(self.signed, codes.device)
        return values[codes.int()]


@cache
def dynamic_map(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The values of the map, and the limits between them."""
    values = torch.tensor(sorted(map_values(signed)), dtype=torch.float64)
    return values.float().to(device), ((values[1:] + values[:-1]) / 2).float().to(device)


def map_values(signed: bool) -> list[float]:
    """Powers of ten from 1e-6 to 1, the larger the more values evenly between a tenth of them and them; with zero and one."""
    values = [0.0, 1.0]
    for bits in range(MAP_POWERS):
        limits = torch.linspace(0.1, 1, 2 ** (bits if signed else bits + 1) + 1)
        positive = (10.0 ** (bits + 1 - MAP_POWERS) * (limits[:-1] + limits[1:]) / 2).tolist()
        values += [*positive, *(-value for value in positive)] if signed else positive
    return values


class Float8:
    """e4m3: 3 bits of fraction. Codes are kept as whole numbers, which every back end can send and every file can hold."""

    largest = torch.finfo(torch.float8_e4m3fn).max

    def encode(self, shares: Tensor) -> Tensor:
        return shares.to(torch.float8_e4m3fn).view(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.view(torch.float8_e4m3fn).float()


class FewBitsAdamW(Optimizer):
    """AdamW with states in 8 bits; those of weights with short rows stay in fp32. It computes in fp32, a piece of a weight at a time.

    Args:
        groups: parameters with their settings.
        defaults: settings of all of them.
        formats: of the running means of gradients and of their squares.
        block_size: most numbers that share a scale.
    """

    add_param_group = unwrap(Optimizer.add_param_group)

    def __init__(
        self,
        groups: list[dict[str, Any]],
        defaults: dict[str, Any],
        *,
        formats: tuple[Format, Format],
        block_size: int,
    ) -> None:
        super().__init__(groups, defaults)
        self.formats = dict(zip(MEANS, formats, strict=True))
        self.block_size = block_size
        for group in self.param_groups:
            for parameter, name in zip(group["params"], group["param_names"], strict=True):
                refuse_cut_blocks(parameter, name, block_of(parameter.shape, block_size))

    def initial_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The state of a parameter before its first update."""
        state = {"step": torch.zeros(())}
        block = block_of(parameter.shape, self.block_size)
        for mean in MEANS:
            if block is None:
                state[mean] = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            else:
                state[f"{mean}_codes"] = torch.zeros_like(
                    parameter, dtype=torch.uint8, requires_grad=False
                )
                state[f"{mean}_scales"] = with_other_columns(
                    parameter, own_part(parameter).size(-1) // block, parameter.size(-1) // block
                )
        return state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient."""
        assert closure is None, "gradients are there before a step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        if not self.state[parameter]:
            self.state[parameter] = self.initial_state(parameter)
        state = self.state[parameter]
        state["step"] += 1
        beta1, beta2 = group["betas"]
        steps = state["step"].item()
        parts = {key: in_rows(own_part(value)) for key, value in state.items() if key != "step"}
        weight_RC, gradient_RC = in_rows(own_part(parameter)), in_rows(own_part(gradient))
        for rows in pieces(weight_RC):
            piece = {key: part[rows] for key, part in parts.items()}
            slope = gradient_RC[rows].float()
            mean = self._read(piece, MEANS[0]).lerp_(slope, 1 - beta1)
            square = self._read(piece, MEANS[1]).lerp_(slope.square(), 1 - beta2)
            self._write(piece, MEANS[0], mean)
            self._write(piece, MEANS[1], square)
            root = square.sqrt_().div_((1 - beta2**steps) ** 0.5).add_(group["eps"])
            weight = weight_RC[rows].float() * (1 - group["lr"] * group["weight_decay"])
            weight_RC[rows] = weight.addcdiv_(
                mean, root, value=-group["lr"] / (1 - beta1**steps)
            ).to(weight_RC.dtype)

    def _read(self, piece: dict[str, Tensor], mean: str) -> Tensor:
        """A running mean in fp32, a copy."""
        if mean in piece:
            return piece[mean].clone()
        scales_RK = piece[f"{mean}_scales"]
        numbers_RKS = (
            self.formats[mean]
            .decode(piece[f"{mean}_codes"])
            .unflatten(-1, (scales_RK.size(-1), -1))
        )
        return (numbers_RKS * scales_RK.unsqueeze(-1)).flatten(-2)

    def _write(self, piece: dict[str, Tensor], mean: str, numbers_RC: Tensor) -> None:
        """Keeps a running mean."""
        if mean in piece:
            piece[mean].copy_(numbers_RC)
            return
        format, scales_RK = self.formats[mean], piece[f"{mean}_scales"]
        numbers_RKS = numbers_RC.unflatten(-1, (scales_RK.size(-1), -1))
        scales_RK.copy_(numbers_RKS.abs().amax(-1).clamp_(min=SMALLEST_SCALE) / format.largest)
        piece[f"{mean}_codes"].copy_(
            format.encode((numbers_RKS / scales_RK.unsqueeze(-1)).flatten(-2))
        )


def block_of(shape: torch.Size, block_size: int) -> int | None:
    """Numbers of a row that share a scale, by the shape of the whole weight; None where its states stay in fp32."""
    if len(shape) < 2 or shape[-1] % PARTS:
        return None
    width = shape[-1] // PARTS
    # the largest power of two in it
    block = min(block_size, width & -width)
    return block if block >= SMALLEST_BLOCK else None


def refuse_cut_blocks(parameter: nn.Parameter, name: str, block: int | None) -> None:
    """Raises a problem where ranks that split the rows of a weight would share a block."""
    columns = own_part(parameter).size(-1) if parameter.ndim else 0
    if block is not None and columns % block:
        message = f"each rank has {columns} columns of {name}, which blocks of {block} numbers with one scale do not fill"
        help = "use tensor_parallel_degree 2, 4 or 8, or optimizer.name: adamw with state_dtype: bfloat16"
        raise fail("conflict", message, path=("optimizer", "name"), help=help)


def in_rows(part: Tensor) -> Tensor:
    """A view of a tensor as one matrix; a single number or row is one row."""
    return part.view(-1, part.size(-1)) if part.ndim > 1 else part.view(1, -1)


def pieces(weight_RC: Tensor) -> Iterator[slice]:
    """Runs of rows, small enough to be in fp32 several times over."""
    rows = max(1, NUMBERS_AT_ONCE // max(1, weight_RC.size(-1)))
    return (slice(start, start + rows) for start in range(0, weight_RC.size(0), rows))


def build_8bit(
    config: AdamW8bitConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]
) -> Optimizer:
    """AdamW with codes from dynamic maps."""
    return built(config, parameters, (DynamicMap(signed=True), DynamicMap(signed=False)))


def build_fp8(
    config: AdamWFp8Config, *, parameters: Iterable[tuple[str, nn.Parameter]]
) -> Optimizer:
    """AdamW with codes in float8."""
    return built(config, parameters, (Float8(), Float8()))


def built(
    config: FewBitsConfig,
    parameters: Iterable[tuple[str, nn.Parameter]],
    formats: tuple[Format, Format],
) -> Optimizer:
    """The optimizer over all named parameters."""
    defaults = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    return FewBitsAdamW(
        grouped(config, parameters), defaults, formats=formats, block_size=config.block_size
    )
