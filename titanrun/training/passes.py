"""Passes of a batch through the model, and what becomes of its logits: here on the one rank that has the whole model.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from titanrun.components.data.batch import TokenBatch
from titanrun.distributed.precision import Precision

Loss = Callable[[Tensor, TokenBatch], Tensor]
Measure = Callable[[Tensor, TokenBatch], dict[str, Tensor]]


class Passes(Protocol):
    """What an engine does with a model and its loss. Batches are on the device, and sums are over this rank's share of the loss.

    `loss` takes the place of the loss that training has.
    """

    def backward(self, batch: TokenBatch, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        """Adds the gradients of the loss sum, divided. Gives the sum."""

    def loss_sum(self, batch: TokenBatch, *, loss: Loss | None = None) -> Tensor:
        """The loss sum, without gradients."""

    def measure(self, batch: TokenBatch, measure: Measure) -> dict[str, Tensor]:
        """What `measure` makes of the logits [B, T, V], without gradients, on every rank that has the batch."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """One rank has all layers."""

    model: nn.Module
    loss: Loss
    precision: Precision
    device: torch.device

    def backward(self, batch: TokenBatch, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        loss_sum = (loss or self.loss)(self._logits(batch), batch)
        (loss_sum / divisor).backward()
        return loss_sum.detach()

    @torch.no_grad()
    def loss_sum(self, batch: TokenBatch, *, loss: Loss | None = None) -> Tensor:
        return (loss or self.loss)(self._logits(batch), batch)

    @torch.no_grad()
    def measure(self, batch: TokenBatch, measure: Measure) -> dict[str, Tensor]:
        return measure(self._logits(batch), batch)

    def _logits(self, batch: TokenBatch) -> Tensor:
        with self.precision.autocast(self.device):
            logits_BTV: Tensor = self.model(batch.tokens, batch.positions, **documents_of(batch))
        return logits_BTV


def documents_of(batch: TokenBatch) -> dict[str, Tensor]:
    """What a model is told of documents, where it is told of any."""
    return {} if batch.documents is None else {"documents_BT": batch.documents}
