"""Preference losses of log-probabilities without a reference, summed over pairs.

CPO (https://arxiv.org/abs/2401.08417) and SimPO (https://arxiv.org/abs/2405.14734).

Shapes: B sequences, T tokens of a sequence, V vocabulary.
"""

from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.pair_logprobs import (
    PairLogprobs,
    compute_logprobs,
    get_nll_mask,
    record_pair_mean,
    record_rewards,
    scale_nll,
    smooth_logsigmoid_loss,
    sum_pair_logprobs,
)
from titanrun.components.losses.preference_config import CpoConfig, SimpoConfig


class CPOLoss:
    """Sum over pairs of -log sigmoid(beta * margin), and the preferred replies' cross entropy.

    The margin is the difference of both replies' log-probabilities.
    """

    def __init__(self, config: CpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        logprobs_BT = compute_logprobs(logits_BTV, batch)
        pairs = sum_pair_logprobs(logprobs_BT, batch)
        return sum_reference_free_losses(self.config, 0.0, pairs, logprobs_BT, batch)


class SimPOLoss:
    """Sum over pairs of -log sigmoid(beta * margin - gamma), with a margin of means over tokens."""

    def __init__(self, config: SimpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        logprobs_BT = compute_logprobs(logits_BTV, batch)
        pairs = sum_pair_logprobs(logprobs_BT, batch).normalize()
        return sum_reference_free_losses(self.config, self.config.gamma, pairs, logprobs_BT, batch)


def sum_reference_free_losses(
    config: CpoConfig | SimpoConfig,
    gamma: float,
    pairs: PairLogprobs,
    logprobs_BT: Tensor,
    batch: TokenBatch,
) -> Tensor:
    """Sum the losses of pairs of which the first should be likelier by gamma / beta."""
    chosen_B, rejected_B = config.beta * pairs.chosen, config.beta * pairs.rejected
    record_rewards(config.name, chosen_B, rejected_B, pairs=pairs)
    losses_B = smooth_logsigmoid_loss(chosen_B - rejected_B - gamma, config.label_smoothing)
    loss = pairs.sum(losses_B)
    if not config.nll_weight:
        return loss
    nll_B = scale_nll(logprobs_BT, get_nll_mask(batch), batch)
    record_pair_mean(f"{config.name}/nll", nll_B, pairs)
    return loss + config.nll_weight * nll_B.sum()
