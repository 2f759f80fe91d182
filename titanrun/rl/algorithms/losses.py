"""What is minimised: sums over the tokens that a policy wrote; the engine divides once by their count over all ranks and passes.

Of each token the batch holds, in `extra`: `logprobs` (the generator's), `advantages`, `weight` (what its length norm makes of it),
`sequences` (which answer it belongs to), and `reference` (the reference's log-probability) where there is one.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

import torch
from torch import Tensor

from titanrun.components.data.batch import TokenBatch
from titanrun.components.metrics.recorder import record
from titanrun.distributed.vocabulary import label_logprobs, token_entropy
from titanrun.rl.algorithms.config import AlgorithmConfig, ClippedConfig, RefKlConfig
from titanrun.rl.algorithms.divergence import ESTIMATORS

# a difference of log-probabilities above it counts as one
DIFFERENT = 1e-6


def bounded(log_ratio_BT: Tensor, bound: float) -> Tensor:
    """The log-ratio within its bounds."""
    return log_ratio_BT.clamp(-bound, bound)


class PolicyLoss:
    """What the losses of all algorithms share. A subclass says what a token's policy term is.

    Args:
        config: the algorithm.
        temperature: of the generator, whose log-probabilities are those of logits divided by it.
    """

    def __init__(self, config: AlgorithmConfig, *, sampling_temperature: float) -> None:
        self.config = config
        self.temperature = sampling_temperature or 1.0

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """The sum as one fp32 number."""
        valid_BT = batch.valid_mask()
        labels_BT = batch.labels.masked_fill(~valid_BT, 0)
        scaled_BTV = logits_BTV.float() / self.temperature
        logprobs_BT = label_logprobs(scaled_BTV, labels_BT).masked_fill(~valid_BT, 0.0)
        behind_BT = batch.extra["logprobs"].masked_fill(~valid_BT, 0.0)
        difference_BT = logprobs_BT - behind_BT
        term_BT = self.term(logprobs_BT, difference_BT, batch)
        if self.config.kl.coef:
            reference_BT = batch.extra["reference"].masked_fill(~valid_BT, 0.0)
            penalty_BT = ESTIMATORS[self.config.kl.estimator](logprobs_BT - reference_BT)
            record("rl/kl", self.share(penalty_BT, valid_BT), "mean")
            term_BT = term_BT + self.config.kl.coef * penalty_BT
        if self.config.entropy_coef:
            entropy_BT = token_entropy(scaled_BTV)
            record("rl/entropy", self.share(entropy_BT, valid_BT), "mean")
            term_BT = term_BT - self.config.entropy_coef * entropy_BT
        self.measure(difference_BT, valid_BT)
        return (term_BT * batch.extra["weight"]).masked_fill(~valid_BT, 0.0).sum()

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """What each token adds to the sum, before its weight; what is not valid is dropped afterwards."""
        raise NotImplementedError

    def share(self, values_BT: Tensor, valid_BT: Tensor) -> Tensor:
        """Mean over the valid tokens."""
        return values_BT.detach().masked_fill(~valid_BT, 0.0).sum() / valid_BT.sum().clamp(min=1)

    def measure(self, difference_BT: Tensor, valid_BT: Tensor) -> None:
        """Records how far policy and generator are apart."""
        apart_BT = difference_BT.detach().abs().masked_fill(~valid_BT, 0.0)
        record("rl/logprob_diff_max", apart_BT.max(), "max")
        record("rl/logprob_diff_mean", self.share(apart_BT, valid_BT), "mean")
        record("rl/tokens_different", self.share((apart_BT > DIFFERENT).float(), valid_BT), "mean")


class ClippedRatio(PolicyLoss):
    """-min(r A, clip(r) A), with the ratio r of policy and generator."""

    config: ClippedConfig

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        return self.clipped(bounded(log_ratio_BT, self.config.max_log_ratio).exp(), batch)

    def clipped(self, ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """The pessimistic of the ratio and the clipped one."""
        advantages_BT, valid_BT = batch.extra["advantages"], batch.valid_mask()
        bounded_BT = ratio_BT.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        record("rl/ratio_mean", self.share(ratio_BT, valid_BT), "mean")
        record("rl/clipped_share", self.share((bounded_BT != ratio_BT).float(), valid_BT), "mean")
        return -torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)


class SequenceRatio(ClippedRatio):
    """The same with one ratio for a whole answer: exp(mean of its tokens' log-ratios). Each token has its share of the gradient."""

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        valid_BT, sequences_BT = batch.valid_mask(), batch.extra["sequences"].long()
        log_ratio_BT = bounded(log_ratio_BT, self.config.max_log_ratio)
        count = int(sequences_BT.max()) + 1
        sums = log_ratio_BT.new_zeros(count).index_add(0, sequences_BT[valid_BT], log_ratio_BT[valid_BT])
        counts = log_ratio_BT.new_zeros(count).index_add(0, sequences_BT[valid_BT], torch.ones_like(log_ratio_BT[valid_BT]))
        ratio_BT = (sums / counts.clamp(min=1)).exp()[sequences_BT]
        return self.clipped(ratio_BT, batch)


class ClippedWeight(PolicyLoss):
    """-clip(r) A log p, where the clipped ratio has no gradient."""

    config: ClippedConfig

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        weight_BT = (
            bounded(log_ratio_BT.detach(), self.config.max_log_ratio).exp().clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        )
        return -weight_BT * batch.extra["advantages"] * logprobs_BT


class PolicyGradient(PolicyLoss):
    """-A log p."""

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        return -batch.extra["advantages"] * logprobs_BT


class Distillation(PolicyLoss):
    """-r A with A = log p(reference) - log p(generator): the gradient of KL(policy || reference) where the policy is the generator."""

    config: RefKlConfig

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        valid_BT = batch.valid_mask()
        behind_BT = batch.extra["logprobs"].masked_fill(~valid_BT, 0.0)
        advantages_BT = batch.extra["reference"].masked_fill(~valid_BT, 0.0) - behind_BT
        record("rl/reference_gap", -self.share(advantages_BT, valid_BT), "mean")
        return -bounded(log_ratio_BT, self.config.max_log_ratio).exp() * advantages_BT
