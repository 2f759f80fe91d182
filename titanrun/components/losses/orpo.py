"""Odds ratio preference optimization (https://arxiv.org/abs/2403.07691), summed over pairs.

Shapes: B sequences, T tokens of a sequence, V vocabulary.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.pair_logprobs import (
    compute_logprobs,
    get_nll_mask,
    record_pair_mean,
    record_rewards,
    scale_nll,
    sum_pair_logprobs,
)
from titanrun.components.losses.preference_config import OrpoConfig

LARGEST_LOGPROB = -torch.finfo(torch.float32).tiny
"""A reply that is certain would have infinite odds."""


class ORPOLoss:
    """Cross entropy of the preferred conversations - beta * sum of log sigmoid(log odds ratio).

    The odds of a reply are p / (1 - p), with the geometric mean p of its tokens' probabilities.
    """

    def __init__(self, config: OrpoConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar; sequences without a label in the loss are not pairs."""
        logprobs_BT, beta = compute_logprobs(logits_BTV, batch), self.config.beta
        pairs = sum_pair_logprobs(logprobs_BT, batch).normalize()
        # sequences that are no pairs would have the logarithm of 0
        chosen_B, rejected_B = (
            values_B.where(pairs.is_pair, -1.0).clamp(max=LARGEST_LOGPROB)
            for values_B in (pairs.chosen, pairs.rejected)
        )
        log_odds_B = chosen_B - rejected_B - (log1mexp(chosen_B) - log1mexp(rejected_B))
        mask_BT = get_nll_mask(batch, includes_prompt=self.config.nll_on == "all")
        nll_B = scale_nll(logprobs_BT, mask_BT, batch)
        record_rewards("orpo", beta * chosen_B, beta * rejected_B, pairs=pairs)
        record_pair_mean("orpo/log_odds", log_odds_B, pairs)
        record_pair_mean("orpo/nll", nll_B, pairs)
        return nll_B.sum() - beta * pairs.sum(logsigmoid(log_odds_B))


def log1mexp(values: Tensor) -> Tensor:
    """Return log(1 - exp(values)) of negative values.

    Near 0 exp loses the difference from 1, which expm1 keeps. Each branch gets values that it can
    take, as the gradients of an infinite one would be NaN even where it is not used.
    """
    is_near_0 = values > -math.log(2)
    near = values.where(is_near_0, -0.5)
    far = values.where(~is_near_0, -1.0)
    return torch.where(is_near_0, (-near.expm1()).log(), (-far.exp()).log1p())
