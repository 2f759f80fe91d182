"""Low-rank adapters among the weights of a checkpoint: which they are, and how they become part of the frozen weights.

Shapes: I and O width before and after a linear module, R rank of its adapter; stacked experts count themselves in front of these.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

A, B = ".lora_a", ".lora_b"
# beside a matrix of stacked experts, where a linear module has them within
STACKED = ("_lora_a", "_lora_b")


def is_adapter(name: str) -> bool:
    """Whether a weight of that name belongs to an adapter."""
    return name.endswith((A, B, *STACKED))


def adapted_modules(names: Iterable[str]) -> list[str]:
    """The modules that have an adapter among these weights, in their order."""
    return [name.removesuffix(A) for name in names if name.endswith(A)]


def adapted_stacks(names: Iterable[str]) -> list[str]:
    """The stacked matrices that have adapters among these weights, in their order."""
    return [name.removesuffix(STACKED[0]) for name in names if name.endswith(STACKED[0])]


def split_adapters(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The frozen weights, and those of adapters."""
    base = {name: tensor for name, tensor in weights.items() if not is_adapter(name)}
    return base, {name: tensor for name, tensor in weights.items() if is_adapter(name)}


@torch.no_grad()
def merged(weights: Mapping[str, Tensor], *, scale: float) -> dict[str, Tensor]:
    """The weights with W + scale * B A for each W that has an adapter: computed in fp32, rounded once to the type of W.

    (W + scale * B A) x and W x + scale * B (A x) are the same number where no product and no sum is rounded; else they differ by
    rounding.
    """
    base, adapters = split_adapters(weights)
    places = [(f"{module}.weight", module + A, module + B) for module in adapted_modules(adapters)]
    places += [(name, name + STACKED[0], name + STACKED[1]) for name in adapted_stacks(adapters)]
    for name, *parts in places:
        weight_OI = base[name]
        a_RI, b_OR = (adapters[part].to(weight_OI.device, torch.float32) for part in parts)
        base[name] = (weight_OI.float() + scale * (b_OR @ a_RI)).to(weight_OI.dtype)
    return base
