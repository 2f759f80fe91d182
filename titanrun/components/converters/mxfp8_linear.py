"""Linear modules in MXFP8, by torchao's prototype: each 32 numbers in a row share a scale that is a power of two.

Shapes: N tokens, I and O width before and after the product.
"""

from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.config import Mxfp8LinearConfig
from titanrun.components.converters.conversion import Conversion, replace_module
from titanrun.components.converters.linear_modules import named_in, not_in_blocks_of, sorted_out
from titanrun.distributed.torchao_parts import torchao_part

MX_LINEAR = "prototype.moe_training.mxfp8_linear"
MX_CONFIG = "prototype.mx_formats.config"
PREFERENCE = "quantization.quantize_.common.kernel_preference"
ROUNDING = {"mxfp8_cublas": "floor", "mxfp8_cublas_rceil": "rceil"}
KINDS = 3


class Mxfp8Linear(nn.Linear):
    """A linear module whose three products are made in MXFP8. `product` is torchao's, `options` what follows input and weight."""

    product: Any
    options: tuple[Any, ...]

    def forward(self, x_NI: Tensor) -> Tensor:
        kind = x_NI.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_NI.dtype
        with torch.autocast(kind, enabled=False):
            y_NO: Tensor = self.product(x_NI.to(dtype), self.weight.to(dtype), *self.options)
        return y_NO if self.bias is None else y_NO + self.bias.to(dtype)


def convert(config: Mxfp8LinearConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Swaps linear modules; the names of parameters stay."""
    taken, left = sorted_out(model, named_in(config.filter_fqns), not_in_blocks_of(config.block))
    product, options = torchao_part(MX_LINEAR).mx_mm.apply, options_of(config)
    for name in taken:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        with torch.device("meta"):
            swapped = Mxfp8Linear(linear.in_features, linear.out_features, bias=False)
        swapped.weight, swapped.bias = linear.weight, linear.bias
        swapped.product, swapped.options = product, options
        replace_module(model, name, swapped)
    return Conversion(
        taken=tuple(taken),
        left=left,
        kind=f"{config.recipe_name}{', emulated' if config.emulate else ''}",
    )


def options_of(config: Mxfp8LinearConfig) -> tuple[Any, ...]:
    """What torchao's product takes after input and weight: number formats, block, kernels, rounding, gradients in high precision."""
    formats, preference = torchao_part(MX_CONFIG), torchao_part(PREFERENCE).KernelPreference
    rows, columns = formats.MXFP8Dim0CastKernelChoice, formats.MXFP8Dim1CastKernelChoice
    return (
        *(torch.float8_e4m3fn,) * KINDS,
        config.block,
        preference.EMULATED if config.emulate else preference.AUTO,
        rows.TORCH if config.emulate else rows.TRITON,
        columns.TORCH if config.emulate else columns(config.mxfp8_dim1_cast_kernel_choice),
        formats.ScaleCalculationMode(ROUNDING[config.recipe_name]),
        False,
    )
