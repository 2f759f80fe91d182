"""Passes through a whole model whose output head reads its stream piece by piece, and gives the loss.

Shapes: B rows, C tokens of a piece, V vocabulary.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.components.data.batch import Batch, TokenBatch
from titanrun.distributed.chunked_head import ChunkedHead
from titanrun.training.passes import Loss, WholeModel


@dataclass(frozen=True, slots=True)
class ChunkedModel(WholeModel):
    """One rank has all layers, and never all logits of its tokens, but where they are measured."""

    head: ChunkedHead

    def backward(self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        loss_sum = self._loss_sum(batch, loss)
        (loss_sum / divisor).backward()
        return loss_sum.detach()

    @torch.no_grad()
    def loss_sum(self, batch: Batch, *, loss: Loss | None = None) -> Tensor:
        return self._loss_sum(batch, loss)

    def _loss_sum(self, batch: Batch, loss: Loss | None) -> Tensor:
        """A loss that somebody else brings gets the logits of whole rows."""
        if loss is not None:
            return loss(self._output(batch), batch)
        with self._reading(batch):
            return self._output(batch)

    def _reading(self, batch: Batch) -> AbstractContextManager[None]:
        assert isinstance(batch, TokenBatch), (
            "a rule holds that the loss is about what the model takes"
        )

        def loss_of(logits_BCV: Tensor, start: int, end: int) -> Tensor:
            return self.loss(logits_BCV, batch.columns(start, end))

        return self.head.reading(loss_of)
