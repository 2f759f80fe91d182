"""Policy losses: sums over the tokens that a policy generated.

The engine divides the sum once by the token count over all ranks and passes.

For each token `extra` of the batch holds: `logprobs` (of the generator), `advantages`, `weight`
(the factor of the length normalization), `sequences` (index of the completion), and `reference`
(log-probability of the reference) if there is a reference. Tokens that a correction drops have the
weight 0 in `weights` of the batch.

Shapes: B sequences, T tokens per sequence, V vocabulary.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.step_metrics import record_metric
from titanrun.distributed.loss_collectives import all_reduce_max, all_reduce_sum
from titanrun.distributed.vocab_parallel import compute_label_logprobs, compute_token_entropy
from titanrun.rl.algorithms.config import (
    AlgorithmConfig,
    ClippedAlgorithmConfig,
    DppoConfig,
    RefKlConfig,
)
from titanrun.rl.algorithms.corrections import NoCorrection, compute_importance_ratio
from titanrun.training.token_sampling import scale_logits


# Estimators of KL(policy || reference) from tokens sampled by the policy, see
# http://joschu.net/blog/kl-approx.html
def estimate_kl_k1(difference: Tensor) -> Tensor:
    """Return d = log p(policy) - log p(reference): unbiased, negative half of the time."""
    return difference


def estimate_kl_k2(difference: Tensor) -> Tensor:
    """Return d^2 / 2: biased, low variance."""
    return difference.square() / 2


def estimate_kl_k3(difference: Tensor) -> Tensor:
    """Return exp(-d) - 1 + d: unbiased and never negative."""
    return (-difference).expm1() + difference


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": estimate_kl_k1,
    "k2": estimate_kl_k2,
    "k3": estimate_kl_k3,
    "abs": Tensor.abs,
}


# tokens whose next-token distributions are in memory at once, to record the entropy
ENTROPY_CHUNK_TOKENS = 1024
# differences of log-probabilities up to this count as equal
LOGPROB_TOLERANCE = 1e-6
# metrics recorded as sums over tokens
SUM_METRICS = {
    f"rl/{name}"
    for name in (
        "kl",
        "entropy",
        "logprob_diff_mean",
        "tokens_different",
        "ratio_mean",
        "clipped_share",
        "reference_gap",
        "pg_loss",
        "advantage_mean",
        "advantage_square",
        "correction/mean",
        "correction/clipped_share",
    )
}


def clamp_log_ratio(log_ratio_BT: Tensor, bound: float) -> Tensor:
    """Clamp the log-ratio to [-bound, bound]."""
    return log_ratio_BT.clamp(-bound, bound)


def average_over_tokens(recorded: Mapping[str, float], *, num_tokens: int) -> dict[str, float]:
    """Divide the recorded sums by the step's valid tokens. Other metrics stay.

    The standard deviation of the advantages follows from the sums of all ranks.
    """
    averaged = {
        name: value / max(1, num_tokens) if name in SUM_METRICS else value
        for name, value in recorded.items()
    }
    square = averaged.pop("rl/advantage_square", None)
    if square is not None:
        averaged["rl/advantage_std"] = max(0.0, square - averaged["rl/advantage_mean"] ** 2) ** 0.5
    return averaged


class PolicyLoss:
    """Base class of policy losses. Subclasses define the policy term of a token.

    Args:
        config: the algorithm.
        sampling_temperature: temperature of the generator, whose log-probabilities are of logits
            divided by it.
        cp_group: context-parallel ranks that share sequences. None if this rank has whole
            sequences.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        *,
        sampling_temperature: float,
        cp_group: ProcessGroup | None = None,
    ) -> None:
        self.config, self.cp_group = config, cp_group
        self.temperature = sampling_temperature
        self.correction: NoCorrection = config.correction.load_builder()(config.correction)

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Compute the loss sum as an fp32 scalar."""
        valid_BT = batch.label_mask()
        labels_BT = batch.labels.masked_fill(~valid_BT, 0)
        scaled_BTV = scale_logits(logits_BTV, self.temperature)
        logprobs_BT = compute_label_logprobs(scaled_BTV, labels_BT).masked_fill(~valid_BT, 0.0)
        behind_BT = batch.extra["logprobs"].masked_fill(~valid_BT, 0.0)
        difference_BT = logprobs_BT - behind_BT
        ratio_BT = self.compute_ratio(difference_BT, batch)
        term_BT = self.token_loss(logprobs_BT, ratio_BT, batch)
        term_BT = self.correct(term_BT, ratio_BT, difference_BT, batch)
        self.record_advantages(term_BT, batch, valid_BT)
        if self.config.kl.coef:
            reference_BT = batch.extra["reference"].masked_fill(~valid_BT, 0.0)
            penalty_BT = KL_ESTIMATORS[self.config.kl.estimator](logprobs_BT - reference_BT)
            record_metric("rl/kl", self.masked_sum(penalty_BT, valid_BT), "sum")
            term_BT = term_BT + self.config.kl.coef * penalty_BT
        if self.config.entropy_coef:
            entropy_BT = compute_token_entropy(scaled_BTV)
            record_metric("rl/entropy", self.masked_sum(entropy_BT, valid_BT), "sum")
            term_BT = term_BT - self.config.entropy_coef * entropy_BT
        elif self.config.entropy_metric is True:
            self.record_entropy(scaled_BTV, valid_BT)
        self.record_divergence(difference_BT, valid_BT)
        return batch.sum_valid(term_BT * batch.extra["weight"])

    def compute_ratio(self, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor | None:
        """Compute the ratio of policy to generator that the loss multiplies with, None for none."""
        return None

    def token_loss(self, logprobs_BT: Tensor, ratio_BT: Tensor | None, batch: TokenBatch) -> Tensor:
        """Compute the unweighted loss of each token [B, T]. The caller masks invalid tokens."""
        raise NotImplementedError

    def correct(
        self, term_BT: Tensor, ratio_BT: Tensor | None, log_ratio_BT: Tensor, batch: TokenBatch
    ) -> Tensor:
        """Apply the correction to the policy term, and record how far policy and generator are."""
        importance_BT, valid_BT = compute_importance_ratio(log_ratio_BT), batch.label_mask()
        used_BT = importance_BT if ratio_BT is None else ratio_BT.detach()
        changed_BT = self.correction.find_changed(used_BT, batch)
        record_metric("rl/correction/mean", self.masked_sum(importance_BT, valid_BT), "sum")
        record_metric(
            "rl/correction/clipped_share", self.masked_sum(changed_BT.float(), valid_BT), "sum"
        )
        factor_BT = self.correction.compute_factor(used_BT, is_in_loss=ratio_BT is not None)
        return term_BT if factor_BT is None else term_BT * factor_BT

    def masked_sum(self, values_BT: Tensor, valid_BT: Tensor) -> Tensor:
        """Sum over the valid tokens.

        `average_over_tokens` turns the sums recorded by all passes and ranks into means.
        """
        return values_BT.detach().masked_fill(~valid_BT, 0.0).sum()

    @torch.no_grad()
    def record_entropy(self, scaled_BTV: Tensor, valid_BT: Tensor) -> None:
        """Record the mean entropy of the policy at the trained tokens."""
        entropy_BT = compute_token_entropy(scaled_BTV.detach(), chunk_tokens=ENTROPY_CHUNK_TOKENS)
        record_metric("rl/entropy", self.masked_sum(entropy_BT, valid_BT), "sum")

    def record_advantages(self, term_BT: Tensor, batch: TokenBatch, valid_BT: Tensor) -> None:
        """Record metrics of the policy term and of the advantages of the trained tokens."""
        weighed_BT = term_BT.detach() * batch.extra["weight"]
        record_metric("rl/pg_loss", batch.sum_valid(weighed_BT), "sum")
        if "advantages" in batch.extra:
            advantages_BT = batch.extra["advantages"].double()
            record_metric("rl/advantage_mean", self.masked_sum(advantages_BT, valid_BT), "sum")
            record_metric(
                "rl/advantage_square", self.masked_sum(advantages_BT.square(), valid_BT), "sum"
            )

    def record_divergence(self, difference_BT: Tensor, valid_BT: Tensor) -> None:
        """Record metrics of the difference between policy and generator."""
        signed_BT = difference_BT.detach().masked_fill(~valid_BT, 0.0)
        record_metric("rl/logprob_delta_high", signed_BT.max(), "max")
        record_metric("rl/logprob_delta_low", (-signed_BT).max(), "max")
        apart_BT = difference_BT.detach().abs().masked_fill(~valid_BT, 0.0)
        record_metric("rl/logprob_diff_max", apart_BT.max(), "max")
        record_metric("rl/logprob_diff_mean", self.masked_sum(apart_BT, valid_BT), "sum")
        record_metric(
            "rl/tokens_different",
            self.masked_sum((apart_BT > LOGPROB_TOLERANCE).float(), valid_BT),
            "sum",
        )


class RatioLoss(PolicyLoss):
    """Base class of losses with the ratio of policy to generator of each token."""

    config: ClippedAlgorithmConfig | DppoConfig | RefKlConfig

    def compute_ratio(self, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Compute the ratio of each token [B, T]."""
        return clamp_log_ratio(log_ratio_BT, self.config.max_log_ratio).exp()

    def record_ratio(self, ratio_BT: Tensor, clipped_BT: Tensor, valid_BT: Tensor) -> None:
        """Record the mean ratio, and the share of the tokens in a mask [B, T] of clipped ones."""
        record_metric("rl/ratio_mean", self.masked_sum(ratio_BT, valid_BT), "sum")
        record_metric("rl/clipped_share", self.masked_sum(clipped_BT.float(), valid_BT), "sum")


class ClippedRatioLoss(RatioLoss):
    """Loss -min(r A, clip(r) A) with the ratio r of policy to generator."""

    config: ClippedAlgorithmConfig

    def token_loss(self, logprobs_BT: Tensor, ratio_BT: Tensor | None, batch: TokenBatch) -> Tensor:
        """Compute the loss [B, T], the larger one of the unclipped and the clipped ratio."""
        assert ratio_BT is not None, "the class has a ratio"
        advantages_BT, valid_BT = batch.extra["advantages"], batch.label_mask()
        bounded_BT = ratio_BT.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        self.record_ratio(ratio_BT, bounded_BT != ratio_BT, valid_BT)
        return -torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)


class SequenceRatioLoss(ClippedRatioLoss):
    """Clipped loss with one ratio per completion: exp(mean of the log-ratios of its tokens).

    Each token gets its part of the gradient.
    """

    def compute_ratio(self, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Compute the ratio of each token's completion [B, T]. Collective over cp."""
        valid_BT, sequences_BT = batch.label_mask(), batch.extra["sequences"].long()
        log_ratio_BT = clamp_log_ratio(log_ratio_BT, self.config.max_log_ratio)
        # sequences of padding only have no completion
        count = max(1, int(all_reduce_max(sequences_BT.max(), self.cp_group)) + 1)
        sums = log_ratio_BT.new_zeros(count).index_add(
            0, sequences_BT[valid_BT], log_ratio_BT[valid_BT]
        )
        counts = log_ratio_BT.new_zeros(count).index_add(
            0, sequences_BT[valid_BT], torch.ones_like(log_ratio_BT[valid_BT])
        )
        # tokens of a completion may be on several ranks
        sums, counts = all_reduce_sum(sums, self.cp_group), all_reduce_sum(counts, self.cp_group)
        return (sums / counts.clamp(min=1)).exp()[sequences_BT]


class ClippedWeightLoss(RatioLoss):
    """Loss -clip(r) A log p in which the clipped ratio has no gradient."""

    config: ClippedAlgorithmConfig

    def compute_ratio(self, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Compute the clipped ratio of each token [B, T]."""
        ratio_BT = super().compute_ratio(log_ratio_BT.detach(), batch)
        bounded_BT = ratio_BT.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        self.record_ratio(ratio_BT, bounded_BT != ratio_BT, batch.label_mask())
        return bounded_BT

    def token_loss(self, logprobs_BT: Tensor, ratio_BT: Tensor | None, batch: TokenBatch) -> Tensor:
        """Compute the weighted loss [B, T]."""
        assert ratio_BT is not None, "the class has a ratio"
        return -ratio_BT * batch.extra["advantages"] * logprobs_BT


class BoundedProbabilityLoss(RatioLoss):
    """Loss -r A, masked for tokens whose probability moved too far in the direction of A."""

    config: DppoConfig

    def token_loss(self, logprobs_BT: Tensor, ratio_BT: Tensor | None, batch: TokenBatch) -> Tensor:
        """Compute the masked loss [B, T]."""
        assert ratio_BT is not None, "the class has a ratio"
        advantages_BT, valid_BT = batch.extra["advantages"], batch.label_mask()
        behind_BT = batch.extra["logprobs"].masked_fill(~valid_BT, 0.0)
        risen_BT = logprobs_BT.detach().exp() - behind_BT.exp()
        stays_BT = torch.where(
            advantages_BT > 0, risen_BT <= self.config.max_rise, risen_BT >= -self.config.max_fall
        )
        self.record_ratio(ratio_BT, ~stays_BT, valid_BT)
        return -(ratio_BT * advantages_BT).masked_fill(~stays_BT, 0.0)


class PolicyGradientLoss(PolicyLoss):
    """Loss -A log p."""

    def token_loss(self, logprobs_BT: Tensor, ratio_BT: Tensor | None, batch: TokenBatch) -> Tensor:
        """Compute the loss [B, T]."""
        return -batch.extra["advantages"] * logprobs_BT


class DistillationLoss(RatioLoss):
    """Loss -r A with A = log p(reference) - log p(generator).

    Its gradient is that of KL(policy || reference) if the policy equals the generator.
    """

    config: RefKlConfig

    def token_loss(self, logprobs_BT: Tensor, ratio_BT: Tensor | None, batch: TokenBatch) -> Tensor:
        """Compute the distillation loss [B, T]."""
        assert ratio_BT is not None, "the class has a ratio"
        valid_BT = batch.label_mask()
        behind_BT = batch.extra["logprobs"].masked_fill(~valid_BT, 0.0)
        advantages_BT = batch.extra["reference"].masked_fill(~valid_BT, 0.0) - behind_BT
        record_metric("rl/reference_gap", -self.masked_sum(advantages_BT, valid_BT), "sum")
        return -ratio_BT * advantages_BT
