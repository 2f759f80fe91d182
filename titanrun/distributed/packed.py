"""Frozen matrices in 4 or 8 bits that pass for plain ones: what is copied into them is rounded, and what reads them gets numbers.

`nf4` has 16 values, as likely as each other for normally distributed weights (QLoRA, https://arxiv.org/abs/2305.14314, appendix E), `int8`
255 evenly spaced ones; both relative to the largest number of a block of a row, which is its scale.

Shapes: R rows, C columns, K blocks of a row, S numbers of a block.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

Form = Literal["nf4", "int8"]
# of the paper, as bitsandbytes and torchao have them
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
INT8_LARGEST = 127
# numbers that are in fp32 at one time while a matrix is rounded
NUMBERS_AT_ONCE = 2**20
aten = torch.ops.aten


class Packed(Tensor):
    """A matrix [R, C] of codes and scales. Any operation but a copy into it sees its numbers, a new tensor each time.

    Args:
        codes: uint8 [R, C / 2] of nf4, two in a byte, or int8 [R, C].
        scales: fp32 [R, K].
        dtype: what it passes for.
    """

    codes: Tensor
    scales: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Self:
        columns = codes.size(1) * (2 if codes.dtype == torch.uint8 else 1)
        made: Self = Tensor._make_wrapper_subclass(
            cls, (codes.size(0), columns), dtype=dtype, device=codes.device
        )  # type: ignore[attr-defined]
        return made

    def __init__(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        self.codes, self.scales = codes, scales
        # what nn.Parameter would set
        self._is_param = True

    # these two as methods, beside the dispatch below: its first use imports sympy and DTensor, 75 MiB

    def detach(self) -> "Packed":
        """One with the same codes."""
        return Packed(self.codes, self.scales, self.dtype)

    def copy_(self, src: Tensor, non_blocking: bool = False) -> "Packed":
        """Takes the codes nearest to the numbers of a matrix on any device."""
        self.pack(src.numbers() if isinstance(src, Packed) else src.to(self.device))
        return self

    @property
    def held_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def numbers(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix that the codes stand for."""
        values_RC = (
            nf4_values(self.codes) if self.codes.dtype == torch.uint8 else self.codes.float()
        )
        values_RKS = values_RC.unflatten(1, (self.scales.size(1), -1))
        return values_RKS.mul_(self.scales.unsqueeze(-1)).flatten(1).to(dtype or self.dtype)

    def pack(self, matrix_RC: Tensor) -> None:
        """Takes the nearest codes."""
        rows = max(1, NUMBERS_AT_ONCE // matrix_RC.size(1))
        for start in range(0, matrix_RC.size(0), rows):
            piece = slice(start, start + rows)
            part_RKS = matrix_RC[piece].float().unflatten(1, (self.scales.size(1), -1))
            scales_RK = part_RKS.abs().amax(-1)
            shares_RC = (
                part_RKS / scales_RK.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
            ).flatten(1)
            if self.codes.dtype == torch.uint8:
                self.codes[piece], self.scales[piece] = nf4_codes(shares_RC), scales_RK
            else:
                self.codes[piece] = (shares_RC * INT8_LARGEST).round_().to(torch.int8)
                self.scales[piece] = scales_RK / INT8_LARGEST

    def on(self, device: torch.device) -> "Packed":
        """One like it with memory of its own there, not filled."""
        codes, scales = (
            torch.empty_like(part, device=device) for part in (self.codes, self.scales)
        )
        return Packed(codes, scales, self.dtype)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Packed({tuple(self.shape)}, {self.dtype}, {self.device})"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, Packed):
            if func in (aten.detach.default, aten.alias.default):
                return first.detach()
            if func is aten.copy_.default:
                return first.copy_(args[1])
            assert not func._schema.is_mutable, f"{func} would be lost on codes"  # type: ignore[attr-defined]
        plain_args, plain_kwargs = tree_map(unpacked, (tuple(args), dict(kwargs or {})))
        return func(*plain_args, **plain_kwargs)


class PackedProduct(torch.autograd.Function):
    """x W^T, which keeps the codes for the backward pass and no matrix."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Packed) -> Tensor:
        ctx.weight = weight_OI
        return nn.functional.linear(x_NI, weight_OI.numbers(x_NI.dtype))

    @staticmethod
    def backward(ctx: Any, slope_NO: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return slope_NO @ ctx.weight.numbers(slope_NO.dtype), None


class PackedLinear(nn.Linear):
    """A linear module whose frozen matrix is packed."""

    def forward(self, x_NI: Tensor) -> Tensor:
        y_NO: Tensor = PackedProduct.apply(x_NI, self.weight)
        return y_NO if self.bias is None else y_NO + self.bias.to(y_NO.dtype)


def pack_linear(linear: nn.Linear, form: Form, block_size: int) -> None:
    """Gives a linear module on the meta device a packed matrix, whose memory is still to come."""
    weight = linear.weight
    linear.__class__ = PackedLinear
    linear.register_parameter("weight", empty(weight, form, block_size))  # type: ignore[arg-type]


def empty(matrix_RC: Tensor, form: Form, block_size: int) -> Packed:
    """Room for a matrix, on its device."""
    rows, columns = matrix_RC.shape
    wide, dtype = (columns // 2, torch.uint8) if form == "nf4" else (columns, torch.int8)
    codes = torch.empty(rows, wide, dtype=dtype, device=matrix_RC.device)
    return Packed(
        codes,
        torch.empty(rows, columns // block_size, dtype=torch.float32, device=matrix_RC.device),
        matrix_RC.dtype,
    )


def rounded(matrix_RC: Tensor, form: Form, block_size: int) -> Tensor:
    """A plain matrix with the numbers that it has once packed."""
    packed = empty(matrix_RC, form, block_size)
    packed.pack(matrix_RC)
    return packed.numbers()


def unpacked(value: Any) -> Any:
    """The numbers of a packed matrix; everything else as it is."""
    return value.numbers() if isinstance(value, Packed) else value


def packed_parameters(model: nn.Module) -> Iterator[tuple[nn.Module, str, Packed]]:
    """Every packed matrix, with its module and its name there."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, Packed):
                yield module, name, parameter


@cache
def nf4_table(device: torch.device) -> tuple[Tensor, Tensor]:
    """The values of nf4, and the limits between them."""
    values = torch.tensor(NF4, dtype=torch.float32, device=device)
    return values, (values[1:] + values[:-1]) / 2


def nf4_codes(shares_RC: Tensor) -> Tensor:
    """Two codes in a byte, the first in its upper half."""
    _, between = nf4_table(shares_RC.device)
    codes_RC = torch.bucketize(shares_RC, between, out_int32=True).to(torch.uint8)
    return codes_RC[:, 0::2] << 4 | codes_RC[:, 1::2]


def nf4_values(codes: Tensor) -> Tensor:
    """What bytes of two codes stand for."""
    values, _ = nf4_table(codes.device)
    return values[torch.stack((codes >> 4, codes & 0xF), dim=-1).flatten(1).int()]
