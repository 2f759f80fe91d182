"""Squared error of the logits, as a sum over tokens.

Shapes: B sequences, T tokens of a sequence, V vocabulary.
"""

from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import MseConfig


class MSELoss:
    """Sum over the valid tokens of the mean over the vocabulary of (logit - target)^2.

    The target is `height` at the label, else 0.
    """

    def __init__(self, config: MseConfig) -> None:
        self.height = config.height

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; labels that do not count add nothing."""
        valid_BT = batch.label_mask()
        logits_BTV = logits_BTV.float()
        labels_BT1 = batch.labels.masked_fill(~valid_BT, 0).unsqueeze(-1)
        at_label_BT = logits_BTV.gather(-1, labels_BT1).squeeze(-1)
        # (z - h)^2 instead of z^2 at the label, without a second tensor as large as the logits for
        # the targets
        squared_BT = logits_BTV.square().sum(-1) + self.height * (self.height - 2 * at_label_BT)
        return batch.sum_valid(squared_BT / logits_BTV.size(-1))
