"""Frozen matrices in 4 or 8 bits that behave like plain tensors.

Values copied into them are rounded, and operations that read them get dequantized values. `nf4` has
16 values that are equally likely for normally distributed weights (QLoRA,
https://arxiv.org/abs/2305.14314, appendix E), `int8` has 255 evenly spaced values. Both are
relative to the largest absolute value of a block of a row, which is its scale.

Shapes: R rows, C columns, K blocks of a row, S values of a block.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

WeightQuantFormat = Literal["nf4", "int8"]
# values of the paper, as in bitsandbytes and torchao
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
INT8_MAX = 127
# values that are in fp32 at one time while a matrix is quantized
ELEMENTS_AT_ONCE = 2**20
aten = torch.ops.aten


class QuantizedWeight(Tensor):
    """Quantized matrix [R, C] (codes and scales).

    Every operation except `copy_` dequantizes into a new tensor.

    Args:
        codes: uint8 [R, C / 2] of nf4, two in a byte, or int8 [R, C].
        scales: fp32 [R, K].
        dtype: dtype that the tensor reports.
    """

    codes: Tensor
    scales: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Self:
        """Create the wrapper tensor with the shape of the dequantized matrix."""
        columns = codes.size(1) * (2 if codes.dtype == torch.uint8 else 1)
        made: Self = Tensor._make_wrapper_subclass(
            cls, (codes.size(0), columns), dtype=dtype, device=codes.device
        )
        return made

    def __init__(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        self.codes, self.scales = codes, scales
        # what nn.Parameter would set
        self._is_param = True

    # these two are methods in addition to the dispatch below, whose first use imports sympy and
    # DTensor, 75 MiB

    def detach(self) -> "QuantizedWeight":
        """Return a tensor with the same codes."""
        return QuantizedWeight(self.codes, self.scales, self.dtype)

    def copy_(self, src: Tensor, non_blocking: bool = False) -> "QuantizedWeight":
        """Quantize a matrix on any device into this one."""
        self.quantize_(
            src.dequantize() if isinstance(src, QuantizedWeight) else src.to(self.device)
        )
        return self

    @property
    def quantized_nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the dequantized matrix [R, C]."""
        values_RC = (
            decode_nf4(self.codes) if self.codes.dtype == torch.uint8 else self.codes.float()
        )
        values_RKS: Tensor = values_RC.unflatten(1, (self.scales.size(1), -1))
        return values_RKS.mul_(self.scales.unsqueeze(-1)).flatten(1).to(dtype or self.dtype)

    def quantize_(self, matrix_RC: Tensor) -> None:
        """Replace the codes and scales by those of a matrix, rounded to the nearest codes."""
        rows = max(1, ELEMENTS_AT_ONCE // matrix_RC.size(1))
        for start in range(0, matrix_RC.size(0), rows):
            piece = slice(start, start + rows)
            part_RKS = matrix_RC[piece].float().unflatten(1, (self.scales.size(1), -1))
            scales_RK = part_RKS.abs().amax(-1)
            shares_RC = (
                part_RKS / scales_RK.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
            ).flatten(1)
            if self.codes.dtype == torch.uint8:
                self.codes[piece], self.scales[piece] = encode_nf4(shares_RC), scales_RK
            else:
                self.codes[piece] = (shares_RC * INT8_MAX).round_().to(torch.int8)
                self.scales[piece] = scales_RK / INT8_MAX

    def empty_on_device(self, device: torch.device) -> "QuantizedWeight":
        """Return an uninitialized tensor of the same format on `device`."""
        codes, scales = (
            torch.empty_like(part, device=device) for part in (self.codes, self.scales)
        )
        return QuantizedWeight(codes, scales, self.dtype)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantizedWeight({tuple(self.shape)}, {self.dtype}, {self.device})"

    # torch declares the function that turns it off
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, QuantizedWeight):
            if func in (aten.detach.default, aten.alias.default):
                return first.detach()
            if func is aten.copy_.default:
                return first.copy_(args[1])
            assert not func._schema.is_mutable, f"{func} would be lost on codes"  # type: ignore[attr-defined]
        plain_args, plain_kwargs = tree_map(maybe_dequantize, (tuple(args), dict(kwargs or {})))
        return func(*plain_args, **plain_kwargs)


class QuantizedLinearFunction(torch.autograd.Function):
    """x W^T that keeps the codes for the backward pass, and no dequantized matrix."""

    if TYPE_CHECKING:

        @staticmethod
        def apply(x_NI: Tensor, weight_OI: Tensor) -> Tensor:
            """Return x W^T, [N, O]."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: QuantizedWeight) -> Tensor:
        """Compute x W^T with the dequantized weight."""
        ctx.weight = weight_OI
        return nn.functional.linear(x_NI, weight_OI.dequantize(x_NI.dtype))

    @staticmethod
    def backward(ctx: Any, slope_NO: Tensor) -> tuple[Tensor, None]:
        """Compute the gradient of x with the weight dequantized again."""
        return slope_NO @ ctx.weight.dequantize(slope_NO.dtype), None


class QuantizedLinear(nn.Linear):
    """Linear module whose frozen matrix is quantized."""

    def forward(self, x_NI: Tensor) -> Tensor:
        """Return the output in the dtype of the input."""
        y_NO = QuantizedLinearFunction.apply(x_NI, self.weight)
        return y_NO if self.bias is None else y_NO + self.bias.to(y_NO.dtype)


def quantize_linear_(linear: nn.Linear, quant_format: WeightQuantFormat, block_size: int) -> None:
    """Replace the weight of a linear module on the meta device by a quantized matrix.

    Its memory is allocated later.
    """
    weight = linear.weight
    linear.__class__ = QuantizedLinear
    linear.register_parameter("weight", empty_quantized_weight(weight, quant_format, block_size))  # type: ignore[arg-type]


def empty_quantized_weight(
    matrix_RC: Tensor, quant_format: WeightQuantFormat, block_size: int
) -> QuantizedWeight:
    """Return an uninitialized quantized matrix of the same shape and device."""
    rows, columns = matrix_RC.shape
    wide, dtype = (columns // 2, torch.uint8) if quant_format == "nf4" else (columns, torch.int8)
    codes = torch.empty(rows, wide, dtype=dtype, device=matrix_RC.device)
    return QuantizedWeight(
        codes,
        torch.empty(rows, columns // block_size, dtype=torch.float32, device=matrix_RC.device),
        matrix_RC.dtype,
    )


def fake_quantize(matrix_RC: Tensor, quant_format: WeightQuantFormat, block_size: int) -> Tensor:
    """Return a plain matrix with the values that it has after quantization."""
    quantized = empty_quantized_weight(matrix_RC, quant_format, block_size)
    quantized.quantize_(matrix_RC)
    return quantized.dequantize()


def maybe_dequantize(value: Any) -> Any:
    """Dequantize a quantized matrix. Return everything else as it is."""
    return value.dequantize() if isinstance(value, QuantizedWeight) else value


def iter_quantized_parameters(model: nn.Module) -> Iterator[tuple[nn.Module, str, QuantizedWeight]]:
    """Yield every quantized matrix, with its module and its name there."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, QuantizedWeight):
                yield module, name, parameter


def cast_parameters_(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the parameters of a model. Quantized matrices keep their codes and scales."""
    for module, name, weight in list(iter_quantized_parameters(model)):
        module._parameters[name] = cast(
            nn.Parameter, QuantizedWeight(weight.codes, weight.scales, dtype)
        )
    for parameter in model.parameters():
        if not isinstance(parameter, QuantizedWeight):
            parameter.data = parameter.data.to(dtype)


@cache
def build_nf4_table(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values of nf4 and the boundaries between them."""
    values = torch.tensor(NF4, dtype=torch.float32, device=device)
    return values, (values[1:] + values[:-1]) / 2


def encode_nf4(shares_RC: Tensor) -> Tensor:
    """Encode values from -1 to 1, two codes per byte, the first in its upper half."""
    _, between = build_nf4_table(shares_RC.device)
    codes_RC = torch.bucketize(shares_RC, between, out_int32=True).to(torch.uint8)
    return codes_RC[:, 0::2] << 4 | codes_RC[:, 1::2]


def decode_nf4(codes: Tensor) -> Tensor:
    """Return the values of bytes with two codes each."""
    values, _ = build_nf4_table(codes.device)
    return values[torch.stack((codes >> 4, codes & 0xF), dim=-1).flatten(1).int()]
