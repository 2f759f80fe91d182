"""Passes of a batch through a pipeline: its microbatches through the stages of several ranks, the last of which has the logits.

Shapes: B rows, M rows of a microbatch, T tokens of a row, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.components.data.batch import TokenBatch, documents_of
from titanrun.config.suggest import listing
from titanrun.distributed.pipeline import Inputs, Pipeline
from titanrun.distributed.shards import gathered
from titanrun.training.passes import Loss, Measure

Given = TokenBatch | Sequence[TokenBatch]


@dataclass(frozen=True, slots=True)
class PipelinePasses:
    """Each rank has the layers of its stages. The loss is known to the last stage; on all other ranks it counts zero.

    Microbatches are given, or cut of a batch.
    """

    takes_microbatches: ClassVar[bool] = True
    pipeline: Pipeline
    loss: Loss

    def backward(self, batch: Given, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        parts, sums, measured = self._split(batch), [], loss or self.loss

        def share_of_loss(logits_MTV: Tensor, number: int) -> Tensor:
            loss_sum = measured(logits_MTV, parts[number])
            sums.append(loss_sum.detach().clone())
            return loss_sum / divisor

        self.pipeline.backward([inputs_of(part) for part in parts], share_of_loss)
        return self._total(sums)

    @torch.no_grad()
    def loss_sum(self, batch: Given, *, loss: Loss | None = None) -> Tensor:
        parts, measured = self._split(batch), loss or self.loss
        inputs = [inputs_of(part) for part in parts]
        return self._total(
            self.pipeline.forward(
                inputs, lambda logits_MTV, number: measured(logits_MTV, parts[number])
            )
        )

    @torch.no_grad()
    def measure(self, batch: Given, measure: Measure) -> dict[str, Tensor]:
        parts = self._split(batch)
        inputs = [inputs_of(part) for part in parts]
        found = self.pipeline.forward(
            inputs, lambda logits_MTV, number: measure(logits_MTV, parts[number])
        )
        return self._from_last(
            {name: torch.cat([part[name] for part in found]) for name in found[0]} if found else {}
        )

    def _split(self, batch: Given) -> list[TokenBatch]:
        """Raises ValueError for given microbatches of several shapes."""
        if isinstance(batch, TokenBatch):
            return batch.split(self.pipeline.plan.rows)
        shapes = sorted({tuple(part.tokens.shape) for part in batch})
        if len(shapes) > 1:
            raise ValueError(
                f"the microbatches of a pipeline have one shape, and these have {listing(map(str, shapes), last='and')}"
            )
        return list(batch)

    def _total(self, sums: list[Tensor]) -> Tensor:
        return torch.stack(sums).sum() if sums else torch.zeros((), device=self.pipeline.device)

    def _from_last(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the last stage's rank has, on all ranks of the pipeline."""
        pipeline = self.pipeline
        # a tensor that tensor-parallel ranks split describes itself whole
        box = [{name: (tensor.shape, tensor.dtype) for name, tensor in found.items()}]
        dist.broadcast_object_list(
            box, group=pipeline.group, group_src=pipeline.last_rank, device=pipeline.device
        )
        whole = {}
        for name, (shape, dtype) in box[0].items():
            whole[name] = (
                gathered(found[name]).contiguous()
                if found
                else torch.empty(shape, dtype=dtype, device=pipeline.device)
            )
            dist.broadcast(whole[name], group=pipeline.group, group_src=pipeline.last_rank)
        return whole


def inputs_of(batch: TokenBatch) -> Inputs:
    """Tokens, and what every stage is told of them. A later stage cannot count positions: what it gets may be a part of each row."""
    positions = batch.positions
    if positions is None:
        positions = torch.arange(batch.tokens.size(1), device=batch.tokens.device).expand_as(
            batch.tokens
        )
    return Inputs(batch.tokens, {"positions_BT": positions, **documents_of(batch)})
