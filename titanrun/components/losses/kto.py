"""Kahneman-Tversky optimization (https://arxiv.org/abs/2402.01306), summed over labelled replies.

Shapes: B sequences, T tokens of a sequence, V vocabulary. Each sequence holds one conversation.
"""

import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.pair_logprobs import compute_logprobs, subtract_reference
from titanrun.components.losses.preference_config import KtoConfig
from titanrun.components.metrics.step_metrics import record_metric

DESIRABLE = "desirable"
"""Key in a batch's `extra`: whether the reply of a sequence is desirable, [B, 1] bool."""
KL_ESTIMATE = "kto_kl"
"""Key in a batch's `extra`: the estimate z of the model's divergence from its reference, [B, 1]."""


class KTOLoss:
    """Sum over replies of 1 - sigmoid(beta * (gain - z)), or of 1 - sigmoid(beta * (z - gain)).

    The first is for desirable replies. The gain is how much likelier a reply is than under the
    reference.
    """

    def __init__(self, config: KtoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss do not count."""
        config, valid_BT = self.config, batch.label_mask()
        gained_BT = subtract_reference(compute_logprobs(logits_BTV, batch), batch)
        gains_B = gained_BT.masked_fill(~valid_BT, 0.0).sum(1)
        is_reply_B, desirable_B = valid_BT.any(1), batch.extra[DESIRABLE].squeeze(1)
        z_B = batch.extra[KL_ESTIMATE].squeeze(1)
        # 1 - sigmoid(x) as sigmoid(-x), which keeps small values
        losses_B = torch.where(
            desirable_B,
            config.desirable_weight * (config.beta * (z_B - gains_B)).sigmoid(),
            config.undesirable_weight * (config.beta * (gains_B - z_B)).sigmoid(),
        )
        self._record(gains_B, is_reply_B, desirable_B, z_B)
        return losses_B.masked_fill(~is_reply_B, 0.0).sum()

    def _record(
        self, gains_B: Tensor, is_reply_B: Tensor, desirable_B: Tensor, z_B: Tensor
    ) -> None:
        """Record the means over the replies of each kind, of which a batch may have none."""
        rewards_B = self.config.beta * gains_B.detach()
        for name, is_kind_B in (("chosen", desirable_B), ("rejected", ~desirable_B)):
            counted_B = is_kind_B & is_reply_B
            count = counted_B.sum()
            mean = rewards_B.masked_fill(~counted_B, 0.0).sum() / count.clamp(min=1)
            record_metric(f"kto/{name}_reward", mean, "mean", weight=count)
        is_right_B = (rewards_B > self.config.beta * z_B) == desirable_B
        count = is_reply_B.sum()
        right = (is_right_B & is_reply_B).sum() / count.clamp(min=1)
        record_metric("kto/accuracy", right, "mean", weight=count)
        record_metric("kto/z", z_B.mean(), "mean")
