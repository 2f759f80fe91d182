"""Low-rank adapters among the weights of a checkpoint, and merging them.

Shapes: I and O input and output width of a linear module, R rank of its adapter. Stacked experts
have an expert dimension in front of these.
"""

from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

LORA_A_SUFFIX, LORA_B_SUFFIX = ".lora_a", ".lora_b"
# norms of the rows of an adapted matrix, which DoRA trains
MAGNITUDE_SUFFIX = ".lora_magnitude"
# next to a stacked matrix of experts; a linear module has them as members
EXPERT_LORA_SUFFIXES = ("_lora_a", "_lora_b")


def is_adapter(name: str) -> bool:
    """Return whether a weight of that name belongs to an adapter."""
    return name.endswith((LORA_A_SUFFIX, LORA_B_SUFFIX, MAGNITUDE_SUFFIX, *EXPERT_LORA_SUFFIXES))


def list_adapted_modules(names: Iterable[str]) -> list[str]:
    """Return the modules that have an adapter among these weights, in order."""
    return [name.removesuffix(LORA_A_SUFFIX) for name in names if name.endswith(LORA_A_SUFFIX)]


def list_adapted_expert_weights(names: Iterable[str]) -> list[str]:
    """Return the stacked matrices that have adapters among these weights, in order."""
    return [
        name.removesuffix(EXPERT_LORA_SUFFIXES[0])
        for name in names
        if name.endswith(EXPERT_LORA_SUFFIXES[0])
    ]


def split_adapters(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split weights into frozen weights and adapter weights."""
    base = {name: tensor for name, tensor in weights.items() if not is_adapter(name)}
    return base, {name: tensor for name, tensor in weights.items() if is_adapter(name)}


@torch.no_grad()
def merge_adapters(weights: Mapping[str, Tensor], *, scale: float) -> dict[str, Tensor]:
    """Return the weights with W + scale * B A for each W that has an adapter.

    Rows have the norms of the adapter's magnitudes if it has some. Computed in fp32, rounded once
    to the dtype of the result. (W + scale * B A) x and W x + scale * B (A x) are equal up to
    rounding of products and sums.

    Frozen weights that are stored in fewer bits than adapters get the dtype of the adapters: theirs
    could not hold what an adapter adds.
    """
    base, adapters = split_adapters(weights)
    base = {name: widen(tensor, adapters.values()) for name, tensor in base.items()}
    weight_names = [
        (f"{module}.weight", module + LORA_A_SUFFIX, module + LORA_B_SUFFIX)
        for module in list_adapted_modules(adapters)
    ]
    weight_names += [
        (name, name + EXPERT_LORA_SUFFIXES[0], name + EXPERT_LORA_SUFFIXES[1])
        for name in list_adapted_expert_weights(adapters)
    ]
    for name, *parts in weight_names:
        weight_OI = base[name]
        a_RI, b_OR = (adapters[part].to(weight_OI.device, torch.float32) for part in parts)
        merged_OI = weight_OI.float() + scale * (b_OR @ a_RI)
        magnitude_O = adapters.get(name.removesuffix(".weight") + MAGNITUDE_SUFFIX)
        if magnitude_O is not None:
            norms_O = torch.linalg.vector_norm(merged_OI, dim=1)
            merged_OI *= (magnitude_O.to(norms_O) / norms_O).unsqueeze(1)
        base[name] = merged_OI.to(weight_OI.dtype)
    return base


def widen(weight: Tensor, others: Iterable[Tensor]) -> Tensor:
    """Return a floating-point weight in a dtype that holds its values and those of others."""
    if not weight.is_floating_point():
        return weight
    dtypes = {weight.dtype, *(other.dtype for other in others)}
    return weight.to(reduce(torch.promote_types, dtypes))
