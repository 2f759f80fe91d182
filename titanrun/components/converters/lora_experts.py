"""Low-rank adapters beside the stacked matrices of experts: one for each matrix of each expert.

Shapes: S slots sorted by expert, E experts, I and O width before and after a product, R rank of an adapter.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import AdapterConfig
from titanrun.distributed.seeds import WeightGenerator
from titanrun.distributed.shards import fill

A, B = "_lora_a", "_lora_b"
# of a stack of matrices [E, O, I]
OUTPUTS, INPUTS = 1, 2


class ExpertAdapters(nn.Module):
    """What experts make of a slot by a matrix, plus scale * B A x of the same x, with A and B of that expert.

    Goes in front of the class of the experts, whose names of parameters stay. A [E, R, I] and B [E, O, R] of the matrices w1 are
    `w1_lora_a` and `w1_lora_b` beside them.
    """

    adapted: tuple[str, ...]
    scale: float
    dropout: float

    def times(self, name: str, x_SI: Tensor, counts_E: Tensor) -> Tensor:
        """As the experts' own."""
        experts: Any = super()
        y_SO: Tensor = experts.times(name, x_SI, counts_E)
        if name not in self.adapted:
            return y_SO
        seen_SI = F.dropout(x_SI, self.dropout, self.training) if self.dropout else x_SI
        inner_SR = experts.plain_times(name + A, seen_SI, counts_E)
        return y_SO + self.scale * experts.plain_times(name + B, inner_SR, counts_E)

    @torch.no_grad()
    def init_adapter(self, generator: WeightGenerator) -> None:
        """Draws each A uniform within 1 / sqrt(I), as beside a linear module; B is zero."""
        for name in self.adapted:
            a_ERI = self.get_parameter(name + A)
            bound = 1 / math.sqrt(a_ERI.size(INPUTS))
            generator.restart_for(a_ERI)
            # a rank that holds a part draws the whole
            draws_ERI = torch.empty(a_ERI.shape, dtype=torch.float32, device=generator.device)
            fill(a_ERI, draws_ERI.uniform_(-bound, bound, generator=generator))
            self.get_parameter(name + B).zero_()


def stacks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The stacks of experts of a model, with their names."""
    # known by this attribute: converters know no model family
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "matrices"))


def reason_to_leave_stack(config: AdapterConfig, name: str, experts: nn.Module) -> str | None:
    """Why none of a stack's matrices gets adapters; None: some do."""
    if isinstance(experts, ExpertAdapters):
        return "it has adapters already"
    if config.target_modules is None:
        return "experts get adapters where target_modules names them"
    return None if matrices_meant(config, name, experts) else "target_modules does not name it"


def matrices_meant(config: AdapterConfig, name: str, experts: Any) -> tuple[str, ...]:
    """The matrices of a stack that target_modules means: by their names, or all of them by that of the stack."""
    return tuple(
        matrix
        for matrix in experts.matrices
        if config.targets(name) or config.targets(f"{name}.{matrix}")
    )


def adapt_stack(config: AdapterConfig, experts: Any, matrices: tuple[str, ...]) -> None:
    """Gives the matrices adapters, whose memory is still to come."""
    dims, summands = dict(experts.shared_dims), set()
    for name in matrices:
        weight_EOI = experts.get_parameter(name)
        count, outputs, inputs = weight_EOI.shape
        like = {"dtype": weight_EOI.dtype, "device": weight_EOI.device}
        experts.register_parameter(
            name + A, nn.Parameter(torch.empty(count, config.rank, inputs, **like))
        )
        experts.register_parameter(
            name + B, nn.Parameter(torch.empty(count, outputs, config.rank, **like))
        )
        # ranks that share an expert split an adapter along the width that they have parts of, and of the other half each has the whole
        shares_inputs = dims[name] == INPUTS
        dims[name + A], dims[name + B] = (INPUTS, None) if shares_inputs else (None, OUTPUTS)
        summands.add(name + (B if shares_inputs else A))
    experts.__class__ = adapted_class(type(experts))
    experts.adapted, experts.scale, experts.dropout = matrices, config.scale, config.dropout
    experts.shared_dims, experts.summands = dims, frozenset(summands)


@cache
def adapted_class(kind: type[nn.Module]) -> type[nn.Module]:
    """A class of experts with adapters in front: LoraGroupedExperts."""
    return type(f"Lora{kind.__name__}", (ExpertAdapters, kind), {})
