"""Loss of reward models, summed over pairs of conversations.

Shapes: B sequences, T tokens of a sequence. Each sequence holds a pair: document 0 ends with the
preferred reply, document 1 with the rejected one.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.preference_config import RewardModelConfig
from titanrun.components.metrics.step_metrics import record_metric


class RewardModelLoss:
    """Sum over pairs of -log sigmoid of the difference of their scores."""

    def __init__(self, config: RewardModelConfig) -> None:
        self.config = config

    def __call__(self, scores_BT1: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        scores_BT = scores_BT1.squeeze(-1).float()
        chosen_B, rejected_B = (select_last(scores_BT, batch, document) for document in (0, 1))
        losses_B = -logsigmoid(chosen_B - rejected_B)
        if self.config.center_coefficient:
            sums_B = chosen_B + rejected_B
            losses_B = losses_B + self.config.center_coefficient * sums_B.square()
        is_pair_B = batch.label_mask().any(1)
        record_scores(chosen_B.detach(), rejected_B.detach(), is_pair_B)
        return losses_B.masked_fill(~is_pair_B, 0.0).sum()


def select_last(values_BT: Tensor, batch: TokenBatch, document: int) -> Tensor:
    """Return the value of the last token of a document in each sequence, [B]."""
    assert batch.document_ids is not None, "a rule requires documents by positions"
    # documents are consecutive, so the last token is where the most tokens of it are counted
    counted_BT = (batch.document_ids == document).cumsum(1)
    return values_BT.gather(1, counted_BT.argmax(1, keepdim=True)).squeeze(1)


def record_scores(chosen_B: Tensor, rejected_B: Tensor, is_pair_B: Tensor) -> None:
    """Record both scores, their difference, and how often it is positive."""
    values_B = {
        "accuracy": (chosen_B > rejected_B).float(),
        "margin": chosen_B - rejected_B,
        "chosen_reward": chosen_B,
        "rejected_reward": rejected_B,
    }
    count = is_pair_B.sum()
    for key, value_B in values_B.items():
        mean = value_B[is_pair_B].sum() / count.clamp(min=1)
        record_metric(f"reward/{key}", mean, "mean", weight=count)
