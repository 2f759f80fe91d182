"""Output head with logits in fp32.

A product in bf16 rounds logits to 8 bits, which affects log-probabilities of rare tokens. Shapes: B
batch, T tokens of a sequence, D model width, V vocabulary.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import Fp32LmHeadConfig
from titanrun.components.converters.conversion_report import ConversionReport, replace_module
from titanrun.distributed.dtensor import is_sharded
from titanrun.distributed.head_products import HeadProduct, HeadProducts, splits_vocabulary

LM_HEAD = "output"
# TF32 is a format of accelerators: CPUs multiply fp32 as it is
PRODUCTS = {
    "auto": HeadProducts(torch.float32, "tf32"),
    "ieee": HeadProducts(torch.float32, "ieee"),
    "tf32": HeadProducts(torch.float32, "tf32"),
    "bfloat16": HeadProducts(torch.bfloat16),
}


class Fp32Linear(nn.Linear):
    """Linear module with outputs in fp32, and its weights as they are stored."""

    keeps_dtype: ClassVar = True
    head_products: HeadProducts = PRODUCTS["auto"]

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Compute the logits in fp32."""
        bias = None if self.bias is None else self.bias.float()
        if is_sharded(self.weight) and not splits_vocabulary(self.weight):
            return F.linear(x_BTD.float(), self.weight.float(), bias)
        logits_BTV = HeadProduct.apply(x_BTD, self.weight, self.head_products)
        return logits_BTV if bias is None else logits_BTV + bias


def convert(config: Fp32LmHeadConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Replace the output head; parameters keep their names."""
    head = model.get_submodule(LM_HEAD)
    if type(head) is not nn.Linear:
        return ConversionReport(
            skipped={LM_HEAD: f"it is a {type(head).__name__} already"}, kind="fp32"
        )
    with torch.device("meta"):
        swapped = Fp32Linear(head.in_features, head.out_features, bias=False)
    # the same parameters: a head may share its matrix with the embedding
    swapped.weight, swapped.bias = head.weight, head.bias
    swapped.head_products = PRODUCTS[config.products]
    replace_module(model, LM_HEAD, swapped)
    return ConversionReport(converted=(LM_HEAD,), kind="fp32")
