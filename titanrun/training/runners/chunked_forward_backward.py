"""Forward and backward passes with a loss computed chunk by chunk in the output head.

Shapes: B sequences, C tokens of a chunk, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.components.data.token_batch import Batch, TokenBatch
from titanrun.distributed.chunked_loss import ChunkedLMHead, LossCapture
from titanrun.distributed.token_accuracy import TokenAccuracy
from titanrun.training.runners.forward_backward import (
    FullModelForwardBackward,
    Loss,
    count_top_labels,
)


@dataclass(frozen=True, slots=True)
class ChunkedLossForwardBackward(FullModelForwardBackward):
    """Passes on a rank that has all layers and never holds all logits.

    All logits are computed only for `compute_outputs` and for a loss passed as an argument.
    """

    head: ChunkedLMHead

    def forward_backward(
        self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None
    ) -> Tensor:
        """Add the gradients of the chunked loss sum and return the sum."""
        with self.weights.swap_in():
            if loss is not None:
                return self._backward(loss(self._forward(batch), batch), divisor)
            capture = self._build_capture(batch, divisor)
            with self.head.capture_loss(capture):
                loss_sum = self._forward(batch)
            return self._backward(loss_sum, None if capture.has_divided_gradients else divisor)

    @torch.no_grad()
    def compute_loss_sum(
        self, batch: Batch, *, loss: Loss | None = None, accuracy: TokenAccuracy | None = None
    ) -> Tensor:
        """Compute the chunked loss sum without gradients."""
        if loss is not None:
            return FullModelForwardBackward.compute_loss_sum(
                self, batch, loss=loss, accuracy=accuracy
            )
        with (
            self.weights.swap_in(),
            self.head.capture_loss(self._build_capture(batch, None, accuracy)),
        ):
            return self._forward(batch)

    def _backward(self, loss_sum: Tensor, divisor: Tensor | None) -> Tensor:
        """Add the gradients of the divided sum, and return the sum."""
        (loss_sum if divisor is None else loss_sum / divisor).backward()
        return loss_sum.detach()

    def _build_capture(
        self, batch: Batch, divisor: Tensor | None, accuracy: TokenAccuracy | None = None
    ) -> LossCapture:
        """Build the loss for the head. The divisor is for gradients."""
        assert isinstance(batch, TokenBatch), (
            "a rule checks that the loss fits the modality of the model"
        )

        def compute_chunk_loss(logits_BCV: Tensor, start: int, end: int) -> Tensor:
            chunk = batch.slice_tokens(start, end)
            count_top_labels(accuracy, logits_BCV, chunk)
            return self.loss(logits_BCV, chunk)

        valid_BT = batch.label_mask()
        weights_BT = valid_BT.float() if batch.weights is None else batch.weights * valid_BT
        labels_BT = batch.labels.masked_fill(~valid_BT, 0)
        return LossCapture(compute_chunk_loss, labels_BT, weights_BT, divisor, accuracy)
