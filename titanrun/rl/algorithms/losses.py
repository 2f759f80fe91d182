"""What is minimised: sums over the tokens that a policy wrote; the engine divides once by their count over all ranks and passes.

Of each token the batch holds, in `extra`: `logprobs` (the generator's), `advantages`, `weight` (what its length norm makes of it),
`sequences` (which answer it belongs to), and `reference` (the reference's log-probability) where there is one.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.components.data.batch import TokenBatch
from titanrun.components.metrics.recorder import record
from titanrun.distributed.sums import largest, summed
from titanrun.distributed.vocabulary import label_logprobs, token_entropy
from titanrun.rl.algorithms.config import AlgorithmConfig, ClippedConfig, DppoConfig, RefKlConfig
from titanrun.rl.algorithms.divergence import ESTIMATORS

# a difference of log-probabilities above it counts as one
DIFFERENT = 1e-6
# what is recorded as a sum over tokens
SUMS = {
    f"rl/{name}"
    for name in (
        "kl",
        "entropy",
        "logprob_diff_mean",
        "tokens_different",
        "ratio_mean",
        "clipped_share",
        "reference_gap",
    )
}


def bounded(log_ratio_BT: Tensor, bound: float) -> Tensor:
    """The log-ratio within its bounds."""
    return log_ratio_BT.clamp(-bound, bound)


def per_token(recorded: Mapping[str, float], *, tokens: int) -> dict[str, float]:
    """What losses recorded, its sums divided by the step's valid tokens."""
    return {
        name: value / max(1, tokens) if name in SUMS else value for name, value in recorded.items()
    }


class PolicyLoss:
    """What the losses of all algorithms share. A subclass says what a token's policy term is.

    Args:
        config: the algorithm.
        sampling_temperature: of the generator, whose log-probabilities are those of logits divided by it.
        row_ranks: who shares the rows with this rank; None where it has whole ones.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        *,
        sampling_temperature: float,
        row_ranks: ProcessGroup | None = None,
    ) -> None:
        self.config, self.row_ranks = config, row_ranks
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
            record("rl/kl", self.total(penalty_BT, valid_BT), "sum")
            term_BT = term_BT + self.config.kl.coef * penalty_BT
        if self.config.entropy_coef:
            entropy_BT = token_entropy(scaled_BTV)
            record("rl/entropy", self.total(entropy_BT, valid_BT), "sum")
            term_BT = term_BT - self.config.entropy_coef * entropy_BT
        self.measure(difference_BT, valid_BT)
        return (term_BT * batch.extra["weight"]).masked_fill(~valid_BT, 0.0).sum()

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """What each token adds to the sum, before its weight; what is not valid is dropped afterwards."""
        raise NotImplementedError

    def total(self, values_BT: Tensor, valid_BT: Tensor) -> Tensor:
        """Sum over the valid tokens: `per_token` makes means of what all passes and ranks recorded."""
        return values_BT.detach().masked_fill(~valid_BT, 0.0).sum()

    def measure(self, difference_BT: Tensor, valid_BT: Tensor) -> None:
        """Records how far policy and generator are apart."""
        apart_BT = difference_BT.detach().abs().masked_fill(~valid_BT, 0.0)
        record("rl/logprob_diff_max", apart_BT.max(), "max")
        record("rl/logprob_diff_mean", self.total(apart_BT, valid_BT), "sum")
        record("rl/tokens_different", self.total((apart_BT > DIFFERENT).float(), valid_BT), "sum")


class ClippedRatio(PolicyLoss):
    """-min(r A, clip(r) A), with the ratio r of policy and generator."""

    config: ClippedConfig

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        return self.clipped(bounded(log_ratio_BT, self.config.max_log_ratio).exp(), batch)

    def clipped(self, ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """The pessimistic of the ratio and the clipped one."""
        advantages_BT, valid_BT = batch.extra["advantages"], batch.valid_mask()
        bounded_BT = ratio_BT.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        record("rl/ratio_mean", self.total(ratio_BT, valid_BT), "sum")
        record("rl/clipped_share", self.total((bounded_BT != ratio_BT).float(), valid_BT), "sum")
        return -torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)


class SequenceRatio(ClippedRatio):
    """The same with one ratio for a whole answer: exp(mean of its tokens' log-ratios). Each token has its share of the gradient."""

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        valid_BT, sequences_BT = batch.valid_mask(), batch.extra["sequences"].long()
        log_ratio_BT = bounded(log_ratio_BT, self.config.max_log_ratio)
        # rows that are all filling have no answer
        count = max(1, int(largest(sequences_BT.max(), self.row_ranks)) + 1)
        sums = log_ratio_BT.new_zeros(count).index_add(
            0, sequences_BT[valid_BT], log_ratio_BT[valid_BT]
        )
        counts = log_ratio_BT.new_zeros(count).index_add(
            0, sequences_BT[valid_BT], torch.ones_like(log_ratio_BT[valid_BT])
        )
        # of an answer whose tokens lie on several ranks too
        sums, counts = summed(sums, self.row_ranks), summed(counts, self.row_ranks)
        ratio_BT = (sums / counts.clamp(min=1)).exp()[sequences_BT]
        return self.clipped(ratio_BT, batch)


class ClippedWeight(PolicyLoss):
    """-clip(r) A log p, where the clipped ratio has no gradient."""

    config: ClippedConfig

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        weight_BT = (
            bounded(log_ratio_BT.detach(), self.config.max_log_ratio)
            .exp()
            .clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        )
        return -weight_BT * batch.extra["advantages"] * logprobs_BT


class BoundedProbability(PolicyLoss):
    """-r A of the tokens whose probability has not moved too far where A would move it still further."""

    config: DppoConfig

    def term(self, logprobs_BT: Tensor, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        advantages_BT, valid_BT = batch.extra["advantages"], batch.valid_mask()
        risen_BT = logprobs_BT.detach().exp() - (logprobs_BT - log_ratio_BT).detach().exp()
        stays_BT = torch.where(
            advantages_BT > 0, risen_BT <= self.config.max_rise, risen_BT >= -self.config.max_fall
        )
        ratio_BT = bounded(log_ratio_BT, self.config.max_log_ratio).exp()
        record("rl/ratio_mean", self.total(ratio_BT, valid_BT), "sum")
        record("rl/clipped_share", self.total((~stays_BT).float(), valid_BT), "sum")
        return -(ratio_BT * advantages_BT).masked_fill(~stays_BT, 0.0)


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
        record("rl/reference_gap", -self.total(advantages_BT, valid_BT), "sum")
        return -bounded(log_ratio_BT, self.config.max_log_ratio).exp() * advantages_BT
