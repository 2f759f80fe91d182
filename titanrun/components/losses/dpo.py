"""Direct preference optimisation (https://arxiv.org/abs/2305.18290): the loss of a pair of replies, summed over pairs.

Shapes: B rows, T tokens of a row, V vocabulary. Each row holds a pair: document 0 ends with the preferred reply, document 1 with the other.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from titanrun.components.data.batch import TokenBatch
from titanrun.components.losses.config import DpoConfig
from titanrun.components.metrics.recorder import record
from titanrun.distributed.vocabulary import label_logprobs

REFERENCE = "reference_logprobs"
"""In a batch's `extra`: the log-probability of each label by the reference, [B, T]."""


class Dpo:
    """Sum over pairs of -log sigmoid(beta * margin), where the margin is how much more the model has come to prefer the first reply than
    the reference does."""

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """The sum as one fp32 number; rows without a label that counts are no pairs."""
        assert batch.documents is not None, "a rule asks for documents by positions"
        valid_BT = batch.valid_mask()
        logprobs_BT = label_logprobs(logits_BTV.float(), batch.labels.masked_fill(~valid_BT, 0))
        gained_BT = (logprobs_BT - batch.extra[REFERENCE]).masked_fill(~valid_BT, 0.0)
        chosen_B, rejected_B = (
            gained_BT.masked_fill(batch.documents != number, 0.0).sum(1) for number in (0, 1)
        )
        is_pair_B = valid_BT.any(1)
        logits_B = self.config.beta * (chosen_B - rejected_B)
        smoothing = self.config.label_smoothing
        losses_B = -(1 - smoothing) * logsigmoid(logits_B) - smoothing * logsigmoid(-logits_B)
        pairs = is_pair_B.sum().clamp(min=1)
        record("dpo/accuracy", ((logits_B > 0) & is_pair_B).sum() / pairs, "mean")
        record("dpo/margin", logits_B.detach().masked_fill(~is_pair_B, 0.0).sum() / pairs, "mean")
        return losses_B.masked_fill(~is_pair_B, 0.0).sum()
