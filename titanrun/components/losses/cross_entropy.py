"""Cross entropy of the next token as a sum over tokens.

Shapes: B sequences, T tokens of a sequence, V vocabulary.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.distributed.dtensor import is_sharded
from titanrun.distributed.vocab_parallel import (
    compute_label_logprobs,
    compute_token_logsumexp,
    compute_token_mean_logit,
)


class CrossEntropyLoss:
    """Sum over the valid tokens of -log softmax(logits)[label].

    The caller divides it once by the number of tokens of the whole step.
    """

    def __init__(self, config: CrossEntropyConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar.

        Labels equal to IGNORE_INDEX or outside the loss mask do not count.
        """
        if (
            is_sharded(logits_BTV)
            or self.config.label_smoothing
            or self.config.z_loss
            or batch.weights is not None
        ):
            return self._sum_token_losses(logits_BTV.float(), batch)
        labels_BT = batch.labels.masked_fill(~batch.loss_mask, IGNORE_INDEX)
        # fp32: a bf16 log-sum-exp over the vocabulary loses the small differences that are learned
        # late
        return cross_entropy(
            logits_BTV.flatten(0, 1).float(),
            labels_BT.flatten(),
            reduction="sum",
            ignore_index=IGNORE_INDEX,
        )

    def _sum_token_losses(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum from per-token quantities, for full logits or vocabulary shards."""
        valid_BT = batch.label_mask()
        losses_BT = -compute_label_logprobs(logits_BTV, batch.labels.masked_fill(~valid_BT, 0))
        smoothing, z_loss = self.config.label_smoothing, self.config.z_loss
        if smoothing or z_loss:
            log_sum_BT = compute_token_logsumexp(logits_BTV)
            if smoothing:
                losses_BT = (1 - smoothing) * losses_BT + smoothing * (
                    log_sum_BT - compute_token_mean_logit(logits_BTV)
                )
            losses_BT = losses_BT + z_loss * log_sum_BT.square()
        return batch.sum_valid(losses_BT)
