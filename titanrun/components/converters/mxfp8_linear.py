"""Linear modules in MXFP8, by torchao's prototype.

Each 32 numbers in a row share a scale that is a power of two. Shapes: N tokens, I and O input and
output width of the product.
"""

from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.config import Mxfp8LinearConfig
from titanrun.components.converters.conversion_report import ConversionReport, replace_module
from titanrun.components.converters.linear_modules import (
    has_name_containing,
    has_unaligned_shape,
    select_linear_modules,
)
from titanrun.distributed.torchao_import import import_torchao

MX_LINEAR = "prototype.moe_training.mxfp8_linear"
MX_CONFIG = "prototype.mx_formats.config"
PREFERENCE = "quantization.quantize_.common.kernel_preference"
ROUNDING = {"mxfp8_cublas": "floor", "mxfp8_cublas_rceil": "rceil"}
KINDS = 3


class Mxfp8Linear(nn.Linear):
    """Linear module whose three products are computed in MXFP8.

    `matmul` is torchao's product, `matmul_arguments` are its arguments after input and weight.
    """

    matmul: Any
    matmul_arguments: tuple[Any, ...]

    def forward(self, x_NI: Tensor) -> Tensor:
        """Compute the product in MXFP8, in the dtype of the input."""
        y_NO: Tensor = self.matmul(x_NI, self.weight.to(x_NI.dtype), *self.matmul_arguments)
        return y_NO if self.bias is None else y_NO + self.bias.to(x_NI.dtype)


def convert(config: Mxfp8LinearConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Replace linear modules; parameters keep their names."""
    taken, left = select_linear_modules(
        model, has_name_containing(config.filter_fqns), has_unaligned_shape(config.alignment)
    )
    product, options = import_torchao(MX_LINEAR).mx_mm.apply, get_matmul_arguments(config)
    for name in taken:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        with torch.device("meta"):
            swapped = Mxfp8Linear(linear.in_features, linear.out_features, bias=False)
        swapped.weight, swapped.bias = linear.weight, linear.bias
        swapped.matmul, swapped.matmul_arguments = product, options
        replace_module(model, name, swapped)
    return ConversionReport(
        converted=tuple(taken),
        skipped=left,
        kind=f"{config.recipe_name}{', emulated' if config.emulate else ''}",
    )


def get_matmul_arguments(config: Mxfp8LinearConfig) -> tuple[Any, ...]:
    """Return the arguments of torchao's product after input and weight.

    These are number formats, block, kernels, rounding, and gradients in high precision.
    """
    formats, preference = import_torchao(MX_CONFIG), import_torchao(PREFERENCE).KernelPreference
    rows, columns = formats.MXFP8Dim0CastKernelChoice, formats.MXFP8Dim1CastKernelChoice
    return (
        *(torch.float8_e4m3fn,) * KINDS,
        config.alignment,
        preference.EMULATED if config.emulate else preference.AUTO,
        rows.TORCH if config.emulate else rows.TRITON,
        columns.TORCH if config.emulate else columns(config.mxfp8_dim1_cast_kernel_choice),
        formats.ScaleCalculationMode(ROUNDING[config.recipe_name]),
        False,
    )
