"""Forward and backward passes of an engine: the protocol, and passes of a full model.

Shapes: B sequences, T tokens per sequence, V values per token, such as logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from titanrun.components.data.token_batch import Batch, TokenBatch
from titanrun.distributed.token_accuracy import TokenAccuracy
from titanrun.distributed.working_weights import WorkingWeights

# each loss supports one kind of batch, and a rule checks that the model and the data fit it
Loss = Callable[[Tensor, Any], Tensor]
OutputFn = Callable[[Tensor, Any], dict[str, Tensor]]


class ForwardBackward(Protocol):
    """Forward and backward passes of a model with its loss.

    Batches are on the device. Sums are over this rank's part of the loss. The argument `loss`
    replaces the training loss. `accepts_microbatches` is whether a list of microbatches may be
    passed instead of a batch, to be processed together.
    """

    accepts_microbatches: ClassVar[bool]

    def forward_backward(
        self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None
    ) -> Tensor:
        """Add the gradients of the loss sum, divided by `divisor`, and return the undivided sum."""

    def compute_loss_sum(
        self, batch: Batch, *, loss: Loss | None = None, accuracy: TokenAccuracy | None = None
    ) -> Tensor:
        """Compute the loss sum without gradients.

        `accuracy` counts the labels that are the likeliest tokens.
        """

    def compute_outputs(self, batch: Batch, output_fn: OutputFn) -> dict[str, Tensor]:
        """Apply `output_fn` to the output [B, T, V], without gradients.

        The result is available on every rank that has the batch.
        """


@dataclass(frozen=True, slots=True)
class FullModelForwardBackward:
    """Passes on a rank that has all layers.

    Args:
        model: the model.
        loss: the training loss.
        weights: the weights that passes compute with.
    """

    accepts_microbatches: ClassVar[bool] = False
    model: nn.Module
    loss: Loss
    weights: WorkingWeights

    def forward_backward(
        self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None
    ) -> Tensor:
        """Add the gradients of the loss sum, divided by `divisor`, and return the undivided sum."""
        with self.weights.swap_in():
            loss_sum = (loss or self.loss)(self._forward(batch), batch)
            (loss_sum / divisor).backward()
        return loss_sum.detach()

    @torch.no_grad()
    def compute_loss_sum(
        self, batch: Batch, *, loss: Loss | None = None, accuracy: TokenAccuracy | None = None
    ) -> Tensor:
        """Compute the loss sum without gradients."""
        with self.weights.swap_in():
            output = self._forward(batch)
            count_top_labels(accuracy, output, batch)
            return (loss or self.loss)(output, batch)

    @torch.no_grad()
    def compute_outputs(self, batch: Batch, output_fn: OutputFn) -> dict[str, Tensor]:
        """Apply `output_fn` to the output [B, T, V], without gradients."""
        with self.weights.swap_in():
            return output_fn(self._forward(batch), batch)

    def _forward(self, batch: Batch) -> Tensor:
        return batch.forward_model(self.model)


def count_top_labels(accuracy: TokenAccuracy | None, logits_BTV: Tensor, batch: Batch) -> None:
    """Count the labels of the loss that are the likeliest tokens, if `accuracy` is given.

    Labels with weight 0 do not count; other weights make no difference.
    """
    if accuracy is None:
        return
    assert isinstance(batch, TokenBatch), "accuracy is of tokens"
    counts_BT = batch.label_mask()
    if batch.weights is not None:
        counts_BT = counts_BT & (batch.weights != 0)
    accuracy.add(logits_BTV, batch.labels, counts_BT)
