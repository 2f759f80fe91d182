"""Low-rank adapters of the stacked matrices of experts, one per matrix of each expert.

Shapes: S slots sorted by expert, E experts, I and O input and output width of a product, R rank of
an adapter.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import ALL_LINEAR, AdapterConfig
from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.dtensor import copy_full_into_

EXPERT_LORA_A_SUFFIX, EXPERT_LORA_B_SUFFIX = "_lora_a", "_lora_b"
# dimensions of a stack of matrices [E, O, I]
OUTPUTS, INPUTS = 1, 2


class ExpertLoraMixin(nn.Module):
    """Mixin that adds scale * B A x to products of experts, with A and B of each expert.

    It precedes the class of the experts in the bases. Parameters of the experts keep their names. A
    [E, R, I] and B [E, O, R] of the matrices w1 are added as `w1_lora_a` and `w1_lora_b`.
    """

    adapted_names: tuple[str, ...]
    scale: float
    dropout: float

    def multiply(self, name: str, x_SI: Tensor, counts_E: Tensor) -> Tensor:
        """Multiply by a matrix of the experts and add the output of its adapter."""
        experts: Any = super()
        y_SO: Tensor = experts.multiply(name, x_SI, counts_E)
        if name not in self.adapted_names:
            return y_SO
        dropped_SI = F.dropout(x_SI, self.dropout, self.training) if self.dropout else x_SI
        inner_SR: Tensor = experts.multiply_unconverted(
            name + EXPERT_LORA_A_SUFFIX, dropped_SI, counts_E
        )
        added_SO: Tensor = experts.multiply_unconverted(
            name + EXPERT_LORA_B_SUFFIX, inner_SR, counts_E
        )
        return y_SO + self.scale * added_SO

    @torch.no_grad()
    def init_adapter(self, generator: WeightInitRng) -> None:
        """Initialize each A uniformly within 1 / sqrt(I), as for linear modules, B with zeros."""
        for name in self.adapted_names:
            a_ERI = self.get_parameter(name + EXPERT_LORA_A_SUFFIX)
            bound = 1 / math.sqrt(a_ERI.size(INPUTS))
            generator.seed_for_parameter(a_ERI)
            # a rank with a shard draws the whole matrix
            draws_ERI = torch.empty(a_ERI.shape, dtype=torch.float32, device=generator.device)
            copy_full_into_(a_ERI, draws_ERI.uniform_(-bound, bound, generator=generator))
            self.get_parameter(name + EXPERT_LORA_B_SUFFIX).zero_()


def iter_expert_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the stacks of experts of a model, with their names."""
    # identified by this attribute: converters know no model family
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "matrices"))


def find_expert_skip_reason(config: AdapterConfig, name: str, experts: nn.Module) -> str | None:
    """Return why none of a stack's matrices gets an adapter, None if some do."""
    if isinstance(experts, ExpertLoraMixin):
        return "it has adapters already"
    if config.target_modules in (None, (ALL_LINEAR,)):
        return "experts get adapters only if target_modules names them"
    return (
        None if select_expert_weights(config, name, experts) else "target_modules does not name it"
    )


def select_expert_weights(config: AdapterConfig, name: str, experts: Any) -> tuple[str, ...]:
    """Return the matrices of a stack that target_modules matches, by their names or its name."""
    return tuple(
        matrix
        for matrix in experts.matrices
        if config.is_named(name) or config.is_named(f"{name}.{matrix}")
    )


def add_expert_adapters(config: AdapterConfig, experts: Any, matrices: tuple[str, ...]) -> None:
    """Add adapters, whose memory is not allocated yet, to the matrices of experts."""
    dims, summands = dict(experts.etp_dims), set()
    for name in matrices:
        weight_EOI = experts.get_parameter(name)
        count, outputs, inputs = weight_EOI.shape
        like = {"dtype": weight_EOI.dtype, "device": weight_EOI.device}
        experts.register_parameter(
            name + EXPERT_LORA_A_SUFFIX,
            nn.Parameter(torch.empty(count, config.rank, inputs, **like)),
        )
        experts.register_parameter(
            name + EXPERT_LORA_B_SUFFIX,
            nn.Parameter(torch.empty(count, outputs, config.rank, **like)),
        )
        # ranks that share an expert split an adapter along the width that they have shards of; of
        # the other half, each rank has the whole
        shares_inputs = dims[name] == INPUTS
        dims[name + EXPERT_LORA_A_SUFFIX], dims[name + EXPERT_LORA_B_SUFFIX] = (
            (INPUTS, None) if shares_inputs else (None, OUTPUTS)
        )
        summands.add(name + (EXPERT_LORA_B_SUFFIX if shares_inputs else EXPERT_LORA_A_SUFFIX))
    # for mypy a class of modules has no hash
    kind: Any = type(experts)
    experts.__class__ = get_lora_experts_class(kind)
    experts.adapted_names, experts.scale, experts.dropout = matrices, config.scale, config.dropout
    experts.etp_dims, experts.partial_grad_names = dims, frozenset(summands)


@cache
def get_lora_experts_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class with the adapter mixin and the given class: LoraGroupedExperts."""
    return type(f"Lora{kind.__name__}", (ExpertLoraMixin, kind), {})
