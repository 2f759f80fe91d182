"""Direct preference optimization (https://arxiv.org/abs/2305.18290), summed over pairs.

Shapes: B sequences, T tokens of a sequence, V vocabulary. Each sequence holds a pair: document 0
ends with the preferred reply, document 1 with the rejected one.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import DpoConfig
from titanrun.components.metrics.step_metrics import record_metric
from titanrun.distributed.vocab_parallel import compute_label_logprobs

REFERENCE_LOGPROBS = "reference_logprobs"
"""Key in a batch's `extra`: the log-probability of each label under the reference, [B, T]."""


class DPOLoss:
    """Sum over pairs of -log sigmoid(beta * margin).

    The margin is how much more the model prefers the first reply than the reference does.
    """

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        assert batch.document_ids is not None, "a rule requires documents by positions"
        valid_BT = batch.label_mask()
        logprobs_BT = compute_label_logprobs(
            logits_BTV.float(), batch.labels.masked_fill(~valid_BT, 0)
        )
        gained_BT = (logprobs_BT - batch.extra[REFERENCE_LOGPROBS]).masked_fill(~valid_BT, 0.0)
        chosen_B, rejected_B = (
            gained_BT.masked_fill(batch.document_ids != number, 0.0).sum(1) for number in (0, 1)
        )
        is_pair_B = valid_BT.any(1)
        logits_B = self.config.beta * (chosen_B - rejected_B)
        smoothing = self.config.label_smoothing
        losses_B = -(1 - smoothing) * logsigmoid(logits_B) - smoothing * logsigmoid(-logits_B)
        pairs = is_pair_B.sum().clamp(min=1)
        record_metric("dpo/accuracy", ((logits_B > 0) & is_pair_B).sum() / pairs, "mean")
        record_metric(
            "dpo/margin", logits_B.detach().masked_fill(~is_pair_B, 0.0).sum() / pairs, "mean"
        )
        return losses_B.masked_fill(~is_pair_B, 0.0).sum()
