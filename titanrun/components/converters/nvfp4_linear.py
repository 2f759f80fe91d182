"""Linear modules in NVFP4, by torchao's prototype: a random Hadamard transform spreads outliers, gradients are rounded stochastically.

Shapes: B rows, T tokens of a row, I and O width before and after the product.
"""

from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.config import Nvfp4LinearConfig
from titanrun.components.converters.conversion import Conversion, replace_module
from titanrun.components.converters.linear_modules import (
    named_in_none_of,
    not_in_blocks_of,
    sorted_out,
)
from titanrun.distributed.torchao_parts import torchao_part

PRODUCT = "prototype.moe_training.nvfp4_training.nvfp4_linear"
# any fixed signs do, as long as every rank and every run has the same
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


class Nvfp4Linear(nn.Linear):
    """A linear module whose three products are made in NVFP4; what the rounding draws comes from the device's generator."""

    product: Any

    def forward(self, x_BTI: Tensor) -> Tensor:
        kind = x_BTI.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_BTI.dtype
        with torch.autocast(kind, enabled=False):
            # torchao wants blocks of tokens, which the rows of a batch make together
            y_NO: Tensor = self.product(
                x_BTI.flatten(0, -2), self.weight, self.bias, sign_vector=SIGNS
            )
        return y_NO.unflatten(0, x_BTI.shape[:-1]).to(dtype)


def convert(config: Nvfp4LinearConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Swaps linear modules; the names of parameters stay."""
    taken, left = sorted_out(model, named_in_none_of(config.fqns), not_in_blocks_of(config.block))
    product = torchao_part(PRODUCT).nvfp4_linear
    for name in taken:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        with torch.device("meta"):
            swapped = Nvfp4Linear(linear.in_features, linear.out_features, bias=False)
        swapped.weight, swapped.bias, swapped.product = linear.weight, linear.bias, product
        replace_module(model, name, swapped)
    return Conversion(taken=tuple(taken), left=left, kind="nvfp4")
