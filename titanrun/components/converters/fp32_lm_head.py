"""The output head in fp32: a product in bf16 rounds logits to 8 bits, which log-probabilities of rare tokens feel.

Shapes: B batch, T tokens of a row, D model width, V vocabulary.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import Fp32LmHeadConfig
from titanrun.components.converters.conversion import Conversion, replace_module

HEAD = "output"


class Fp32Linear(nn.Linear):
    """A linear module that computes in fp32 under autocast, and whose weights FSDP gathers in the dtype they are stored in."""

    keeps_dtype: ClassVar = True

    def forward(self, x_BTD: Tensor) -> Tensor:
        with torch.autocast(x_BTD.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x_BTD.float(), self.weight.float(), bias)


def convert(config: Fp32LmHeadConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Swaps the output head; the names of parameters stay."""
    head = model.get_submodule(HEAD)
    if type(head) is not nn.Linear:
        return Conversion(left={HEAD: f"it is a {type(head).__name__} already"}, kind="fp32")
    with torch.device("meta"):
        swapped = Fp32Linear(head.in_features, head.out_features, bias=False)
    # the same parameters: a head may share its matrix with the embedding
    swapped.weight, swapped.bias = head.weight, head.bias
    replace_module(model, HEAD, swapped)
    return Conversion(taken=(HEAD,), kind="fp32")
