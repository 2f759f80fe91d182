"""Matrix that embedding and output head share, used by first and last pipeline stage.

If two ranks hold these stages, each has a copy. Both copies start with the same values and get the
same update, since their gradients are summed before it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from titanrun.distributed.dtensor import is_sharded, reduce_partial_gradients, to_local

TIED_MODULES = ("tok_embeddings", "output")


def has_tied_embeddings(model: nn.Module) -> bool:
    """Return whether embedding and output head of a whole model share one matrix."""
    weights = [getattr(getattr(model, name, None), "weight", None) for name in TIED_MODULES]
    return weights[0] is not None and weights[0] is weights[1]


def retie_weights(model: nn.Module, stages: Collection[int]) -> None:
    """Tie embedding and head of a pipeline rank again after each was parallelized.

    Args:
        model: on the meta device. A model without these modules is unchanged.
        stages: stages that the rank holds. A module that none of them uses was not parallelized,
            and takes the other's matrix.
    """
    embedding, head = (getattr(model, name, None) for name in TIED_MODULES)
    if embedding is None or head is None:
        return
    if 0 in stages:
        head.weight = embedding.weight
    else:
        embedding.weight = head.weight


@dataclass(frozen=True, slots=True)
class PipelineTiedEmbeddings:
    """This rank's copy of a weight tied between the first and last pipeline stage.

    Args:
        weight: the copy of this rank.
        group: the pipeline's ranks.
        peer_rank: rank in the group that holds the other copy.
        device: device on which ranks communicate.
        counts_in_grad_norm: whether this copy counts in the gradient norm. Only one of the two
            does.
    """

    weight: Any
    group: ProcessGroup
    peer_rank: int
    device: torch.device
    counts_in_grad_norm: bool

    def reduce_partial_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """All-reduce partial gradients and return those that count in the gradient norm.

        The gradient of the tied weight includes that of the other copy. All ranks must call this.
        """
        reduce_partial_gradients(parameters)
        self._add_peer_gradient()
        counted = [
            parameter
            for parameter in parameters
            if self.counts_in_grad_norm or parameter is not self.weight
        ]
        return [parameter.grad for parameter in counted if parameter.grad is not None]

    def _add_peer_gradient(self) -> None:
        """Add the other copy's gradient to this one's.

        A sum of two values does not depend on their order: both ranks get the same bits.
        """
        own, placed = self.weight.grad, self.weight
        if own is None:
            return
        if is_sharded(own) and own.placements != placed.placements:
            placed.grad = own = own.redistribute(placements=placed.placements)
        part = to_local(own)
        sent = part.to(self.device).contiguous()
        received = torch.empty_like(sent)
        both = [
            dist.P2POp(dist.isend, sent, group=self.group, group_peer=self.peer_rank),
            dist.P2POp(dist.irecv, received, group=self.group, group_peer=self.peer_rank),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        part.add_(received.to(part.device))
