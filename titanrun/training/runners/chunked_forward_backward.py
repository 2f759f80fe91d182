"""Forward and backward passes with a loss computed chunk by chunk in the output head.

Shapes: B sequences, C tokens of a chunk, V vocabulary.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.components.data.token_batch import Batch, TokenBatch
from titanrun.distributed.chunked_loss import ChunkedLMHead
from titanrun.training.runners.forward_backward import FullModelForwardBackward, Loss


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
        loss_sum = self._compute_loss_sum(batch, loss)
        (loss_sum / divisor).backward()
        return loss_sum.detach()

    @torch.no_grad()
    def compute_loss_sum(self, batch: Batch, *, loss: Loss | None = None) -> Tensor:
        """Compute the chunked loss sum without gradients."""
        return self._compute_loss_sum(batch, loss)

    def _compute_loss_sum(self, batch: Batch, loss: Loss | None) -> Tensor:
        """Compute the loss sum. A loss passed as an argument gets the logits of whole sequences."""
        if loss is not None:
            return loss(self._forward(batch), batch)
        with self._capture_loss(batch):
            return self._forward(batch)

    def _capture_loss(self, batch: Batch) -> AbstractContextManager[None]:
        assert isinstance(batch, TokenBatch), (
            "a rule checks that the loss fits the modality of the model"
        )

        def compute_chunk_loss(logits_BCV: Tensor, start: int, end: int) -> Tensor:
            return self.loss(logits_BCV, batch.slice_tokens(start, end))

        return self.head.capture_loss(compute_chunk_loss)
