"""Focal loss (https://arxiv.org/abs/1708.02002)."""

from torch import Tensor

from pebble.configs import FocalConfig
from titanrun.components.data.token_batch import TokenBatch


class Focal:
    """The sum over tokens of (1 - p)^gamma * -log p."""

    def __init__(self, config: FocalConfig) -> None:
        self.gamma = config.gamma

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return a sum. The engine divides it by the valid tokens of the whole step."""
        valid_BT = batch.label_mask()
        labels_BT1 = batch.labels.masked_fill(~valid_BT, 0).unsqueeze(-1)
        logprobs_BT = logits_BTV.float().log_softmax(-1).gather(-1, labels_BT1).squeeze(-1)
        losses_BT = (1 - logprobs_BT.exp()) ** self.gamma * -logprobs_BT
        return losses_BT.masked_fill(~valid_BT, 0.0).sum()
