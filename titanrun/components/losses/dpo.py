"""Preference losses with a reference, summed over pairs.

DPO (https://arxiv.org/abs/2305.18290) with its variants, and IPO
(https://arxiv.org/abs/2310.12036).

Shapes: B sequences, T tokens of a sequence, V vocabulary.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.pair_logprobs import (
    PairLogprobs,
    compute_logprobs,
    get_nll_mask,
    record_pair_mean,
    record_rewards,
    scale_nll,
    smooth_logsigmoid_loss,
    subtract_reference,
    sum_pair_logprobs,
)
from titanrun.components.losses.preference_config import DpoConfig, IpoConfig


class DPOLoss:
    """Sum over pairs of -log sigmoid(beta * margin), or of another function of the margin.

    The margin is how much more the model prefers the first reply than the reference does.
    """

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        logprobs_BT = compute_logprobs(logits_BTV, batch)
        gained = sum_pair_logprobs(subtract_reference(logprobs_BT, batch), batch)
        if self.config.variant == "sigmoid_norm":
            gained = gained.normalize()
        beta = self.config.beta
        record_rewards("dpo", beta * gained.chosen, beta * gained.rejected, pairs=gained)
        loss = gained.sum(self._compute_pair_losses(gained))
        if not self.config.nll_weight:
            return loss
        nll_B = scale_nll(logprobs_BT, get_nll_mask(batch), batch)
        record_pair_mean("dpo/nll", nll_B, gained)
        return loss + self.config.nll_weight * nll_B.sum()

    def _compute_pair_losses(self, gained: PairLogprobs) -> Tensor:
        """Return the loss of each sequence, [B]."""
        beta, smoothing = self.config.beta, self.config.label_smoothing
        logits_B = beta * (gained.chosen - gained.rejected)
        match self.config.variant:
            case "hinge":
                return (1 - logits_B).relu()
            case "robust":
                kept_B = -(1 - smoothing) * logsigmoid(logits_B)
                swapped_B = -smoothing * logsigmoid(-logits_B)
                return (kept_B - swapped_B) / (1 - 2 * smoothing)
            case "apo_zero":
                return 1 - (beta * gained.chosen).sigmoid() + (beta * gained.rejected).sigmoid()
            case _:
                return smooth_logsigmoid_loss(logits_B, smoothing)


class IPOLoss:
    """Sum over pairs of (margin - 1 / (2 * beta))^2, with a margin of means over tokens."""

    def __init__(self, config: IpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        gained_BT = subtract_reference(compute_logprobs(logits_BTV, batch), batch)
        sums, beta = sum_pair_logprobs(gained_BT, batch), self.config.beta
        record_rewards("ipo", beta * sums.chosen, beta * sums.rejected, pairs=sums)
        means = sums.normalize()
        return sums.sum((means.chosen - means.rejected - 1 / (2 * beta)).square())
