"""Linear modules in NVFP4, by torchao's prototype.

A random Hadamard transform spreads outliers, and gradients are rounded stochastically. Shapes: B
sequences, T tokens of a sequence, I and O input and output width of the product.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import Nvfp4LinearConfig
from titanrun.components.converters.conversion_report import ConversionReport, replace_module
from titanrun.components.converters.linear_modules import (
    has_name_without,
    has_unaligned_shape,
    select_linear_modules,
)
from titanrun.distributed.torchao_import import import_torchao

PRODUCT = "prototype.moe_training.nvfp4_training.nvfp4_linear"
# any fixed signs will do if they are the same on every rank and in every run
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


class Nvfp4Linear(nn.Linear):
    """Linear module whose three products are computed in NVFP4.

    Stochastic rounding draws from the device's RNG.
    """

    matmul: Any
    block: int

    def forward(self, x_BTI: Tensor) -> Tensor:
        """Compute the product in NVFP4, with output in the dtype of the input."""
        # torchao needs blocks of tokens, so the sequences of a batch are concatenated. A rule
        # requires whole blocks in training; generated text has any length
        x_NI = x_BTI.flatten(0, -2)
        filled_NI = F.pad(x_NI, (0, 0, 0, -x_NI.size(0) % self.block))
        y_NO: Tensor = self.matmul(filled_NI, self.weight, self.bias, sign_vector=SIGNS)
        y_NO = y_NO[: x_NI.size(0)]
        y_BTO: Tensor = y_NO.unflatten(0, x_BTI.shape[:-1]).to(x_BTI.dtype)
        return y_BTO


def convert(config: Nvfp4LinearConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Replace linear modules; parameters keep their names."""
    taken, left = select_linear_modules(
        model, has_name_without(config.fqns), has_unaligned_shape(config.alignment)
    )
    product = import_torchao(PRODUCT).nvfp4_linear
    for name in taken:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        with torch.device("meta"):
            swapped = Nvfp4Linear(linear.in_features, linear.out_features, bias=False)
        swapped.weight, swapped.bias, swapped.matmul = linear.weight, linear.bias, product
        swapped.block = config.alignment
        replace_module(model, name, swapped)
    return ConversionReport(converted=tuple(taken), skipped=left, kind="nvfp4")
