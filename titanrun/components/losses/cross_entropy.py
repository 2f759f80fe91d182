"""Cross entropy of the next token as a sum over tokens.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from titanrun.components.data.batch import IGNORE, TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.distributed.shards import is_split
from titanrun.distributed.vocabulary import label_logprobs, token_logsumexp, token_mean


class CrossEntropy:
    """Sum over the valid tokens of -log softmax(logits)[label]; whoever calls divides, once, by the tokens of the whole step."""

    def __init__(self, config: CrossEntropyConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """The sum as one fp32 number; labels that are IGNORE or outside the loss mask count nothing."""
        if (
            is_split(logits_BTV)
            or self.config.label_smoothing
            or self.config.z_loss
            or batch.weights is not None
        ):
            return self._by_token(logits_BTV.float(), batch)
        labels_BT = batch.labels.masked_fill(~batch.loss_mask, IGNORE)
        # fp32: a bf16 log-sum-exp over the vocabulary loses the small differences that are learned late
        return cross_entropy(
            logits_BTV.flatten(0, 1).float(),
            labels_BT.flatten(),
            reduction="sum",
            ignore_index=IGNORE,
        )

    def _by_token(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """The sum from what each token's distribution is about: whole logits, or parts of the vocabulary on each rank."""
        valid_BT = batch.valid_mask()
        losses_BT = -label_logprobs(logits_BTV, batch.labels.masked_fill(~valid_BT, 0))
        smoothing, z_loss = self.config.label_smoothing, self.config.z_loss
        if smoothing or z_loss:
            log_sum_BT = token_logsumexp(logits_BTV)
            if smoothing:
                losses_BT = (1 - smoothing) * losses_BT + smoothing * (
                    log_sum_BT - token_mean(logits_BTV)
                )
            losses_BT = losses_BT + z_loss * log_sum_BT.square()
        return batch.sum_of_valid(losses_BT)
