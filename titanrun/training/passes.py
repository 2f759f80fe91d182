"""Passes of a batch through the model, and what becomes of its output: here on the one rank that has the whole model.

Shapes: B rows, T tokens of a row, V numbers of a token, such as logits of the vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from titanrun.components.data.batch import Batch
from titanrun.distributed.precision import Precision

# each loss is about one kind of batch, and a rule holds that the model and the data are of that kind
Loss = Callable[[Tensor, Any], Tensor]
Measure = Callable[[Tensor, Any], dict[str, Tensor]]


class Passes(Protocol):
    """What an engine does with a model and its loss. Batches are on the device, and sums are over this rank's share of the loss.

    `loss` takes the place of the loss that training has. `takes_microbatches`: whether a list of batches may stand where one does, and
    goes through together.
    """

    takes_microbatches: ClassVar[bool]

    def backward(self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        """Adds the gradients of the loss sum, divided. Gives the sum."""

    def loss_sum(self, batch: Batch, *, loss: Loss | None = None) -> Tensor:
        """The loss sum, without gradients."""

    def measure(self, batch: Batch, measure: Measure) -> dict[str, Tensor]:
        """What `measure` makes of the output [B, T, V], without gradients, on every rank that has the batch."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """One rank has all layers."""

    takes_microbatches: ClassVar[bool] = False
    model: nn.Module
    loss: Loss
    precision: Precision
    device: torch.device

    def backward(self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        loss_sum = (loss or self.loss)(self._output(batch), batch)
        (loss_sum / divisor).backward()
        return loss_sum.detach()

    @torch.no_grad()
    def loss_sum(self, batch: Batch, *, loss: Loss | None = None) -> Tensor:
        return (loss or self.loss)(self._output(batch), batch)

    @torch.no_grad()
    def measure(self, batch: Batch, measure: Measure) -> dict[str, Tensor]:
        return measure(self._output(batch), batch)

    def _output(self, batch: Batch) -> Tensor:
        with self.precision.autocast(self.device):
            return batch.through(self.model)
