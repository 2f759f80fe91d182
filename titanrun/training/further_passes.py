"""Passes through a whole model that predicts, in training, more tokens than the next one.

Shapes: B rows, T tokens of a row, K further tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.components.data.batch import Batch, TokenBatch, documents_of
from titanrun.components.data.further_tokens import further_tokens, with_labels_of
from titanrun.components.metrics.recorder import record
from titanrun.training.passes import Loss, WholeModel


@dataclass(frozen=True, slots=True)
class FurtherTokens(WholeModel):
    """One rank has all layers. Gradients are of the loss of the next token plus `scale` times the mean loss of the `depth` behind it; what
    is only measured is the loss of the next token.

    Every depth is divided by the tokens of the next one's loss, as in the paper.
    """

    depth: int
    scale: float

    def backward(self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None) -> Tensor:
        if loss is not None:
            return WholeModel.backward(self, batch, divisor, loss=loss)
        assert isinstance(batch, TokenBatch), (
            "a rule holds that the loss is about what the model takes"
        )
        parts = [batch, *(with_labels_of(batch, places) for places in range(1, self.depth + 1))]
        logits = self._all_logits(batch).chunk(len(parts))
        sums = [self.loss(logits_BTV, part) for logits_BTV, part in zip(logits, parts, strict=True)]
        for place, (loss_sum, part) in enumerate(zip(sums, parts, strict=True), start=1):
            record(
                f"multi_token/loss_{place}",
                loss_sum.detach() / part.valid_count().clamp(min=1),
                "mean",
            )
        total = sums[0] + self.scale / self.depth * torch.stack(sums[1:]).sum()
        (total / divisor).backward()
        return total.detach()

    def _all_logits(self, batch: TokenBatch) -> Tensor:
        """Logits of the next token, and below them those of each further one, [(1 + K) B, T, V]."""
        with self.precision.autocast(self.device):
            logits: Tensor = self.model(
                batch.tokens,
                batch.positions,
                **documents_of(batch),
                further_KBT=further_tokens(batch, self.depth),
            )
            return logits
