"""Forward and backward passes with multi-token prediction.

Shapes: B sequences, T tokens per sequence, K additional predicted tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.components.data.mtp_labels import select_mtp_labels, stack_mtp_tokens
from titanrun.components.data.token_batch import Batch, TokenBatch, build_document_kwargs
from titanrun.components.metrics.step_metrics import record_metric
from titanrun.training.runners.forward_backward import FullModelForwardBackward, Loss


@dataclass(frozen=True, slots=True)
class MTPForwardBackward(FullModelForwardBackward):
    """Passes on a rank that has all layers and predicts `depth` additional tokens.

    Gradients are of the next-token loss plus `loss_weight` times the mean loss of the `depth`
    tokens after it. `compute_loss_sum` computes the next-token loss only. The loss of every depth
    is divided by the token count of the next-token loss, as in the paper.
    """

    depth: int
    loss_weight: float

    def forward_backward(
        self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None
    ) -> Tensor:
        """Add the gradients of the weighted loss, divided, and return the undivided sum.

        Record the metric `multi_token/loss_<place>` for each predicted token. A loss passed as an
        argument is computed on the next token only.
        """
        if loss is not None:
            return FullModelForwardBackward.forward_backward(self, batch, divisor, loss=loss)
        assert isinstance(batch, TokenBatch), (
            "a rule checks that the loss fits the modality of the model"
        )
        with self.weights.swap_in():
            total = self._compute_total_loss(batch)
            (total / divisor).backward()
        return total.detach()

    def _compute_total_loss(self, batch: TokenBatch) -> Tensor:
        """Compute the weighted loss sum and record the loss of each predicted token."""
        parts = [batch, *(select_mtp_labels(batch, places) for places in range(1, self.depth + 1))]
        logits = self._compute_all_logits(batch).chunk(len(parts))
        sums = [self.loss(logits_BTV, part) for logits_BTV, part in zip(logits, parts, strict=True)]
        for place, (loss_sum, part) in enumerate(zip(sums, parts, strict=True), start=1):
            record_metric(
                f"multi_token/loss_{place}",
                loss_sum.detach() / part.num_valid_tokens().clamp(min=1),
                "mean",
            )
        return sums[0] + self.loss_weight / self.depth * torch.stack(sums[1:]).sum()

    def _compute_all_logits(self, batch: TokenBatch) -> Tensor:
        """Compute logits [(1 + K) B, T, V]: next-token logits first, then those of each depth."""
        logits: Tensor = self.model(
            batch.tokens,
            batch.positions,
            **build_document_kwargs(batch),
            mtp_tokens_KBT=stack_mtp_tokens(batch, self.depth),
        )
        return logits
