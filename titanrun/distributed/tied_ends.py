"""The matrix that embedding and output head share, in a pipeline: its first and its last stage use it, and stay equal.

Where two ranks hold these stages, each has a copy. Both copies begin as the same numbers and get the same update, since their gradients
are added up before it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from titanrun.distributed.shards import finished_gradients, is_split, own_part

ENDS = ("tok_embeddings", "output")


def are_tied(model: nn.Module) -> bool:
    """Whether embedding and output head of a whole model are one matrix."""
    weights = [getattr(getattr(model, name, None), "weight", None) for name in ENDS]
    return weights[0] is not None and weights[0] is weights[1]


def tie_as_laid_out(model: nn.Module, stages: Collection[int]) -> None:
    """Makes the matrix of a pipeline rank one again, after embedding and head were laid out each for itself.

    Args:
        model: on the meta device; one without these parts is left alone.
        stages: which ones the rank holds. A part that none of them uses was not laid out, and takes the other's matrix.
    """
    embedding, head = (getattr(model, name, None) for name in ENDS)
    if embedding is None or head is None:
        return
    if 0 in stages:
        head.weight = embedding.weight
    else:
        embedding.weight = head.weight


@dataclass(frozen=True, slots=True)
class TiedEnds:
    """One of two copies of the matrix.

    Args:
        weight: the copy of this rank.
        group: the pipeline's ranks.
        partner: which of them holds the other copy.
        device: where ranks communicate.
        counts: whether the gradient's norm counts here; on the other rank it does not.
    """

    weight: Any
    group: ProcessGroup
    partner: int
    device: torch.device
    counts: bool

    def finished_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of those parameters that have one, added up over all that hold summands of them; of this matrix where it counts."""
        finished_gradients(parameters)
        self._add_up()
        counted = [
            parameter for parameter in parameters if self.counts or parameter is not self.weight
        ]
        return [parameter.grad for parameter in counted if parameter.grad is not None]

    def _add_up(self) -> None:
        """Adds the other copy's gradient to this one's. A sum of two does not depend on their order: both ranks get the same bits."""
        own, placed = self.weight.grad, self.weight
        if own is None:
            return
        if is_split(own) and own.placements != placed.placements:
            placed.grad = own = own.redistribute(placements=placed.placements)
        part = own_part(own)
        sent = part.to(self.device).contiguous()
        received = torch.empty_like(sent)
        both = [
            dist.P2POp(dist.isend, sent, group=self.group, group_peer=self.partner),
            dist.P2POp(dist.irecv, received, group=self.group, group_peer=self.partner),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        part.add_(received.to(part.device))
