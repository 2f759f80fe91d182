"""The algorithm slot and its choices: RL objectives."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.types import Fraction, NonNegativeFloat, OrAuto, PositiveFloat
from titanrun.rl.algorithms.correction_config import CorrectionConfig

Advantage = Literal[
    "group_mean", "group_std", "leave_one_out", "group_ratio", "group_rank", "running_mean"
]
LengthNorm = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
LOSS_MODULE = "titanrun.rl.algorithms.policy_losses"


class DivergenceConfig(Config):
    """Penalty for divergence from the reference: coef * KL(policy || reference).

    The divergence is estimated for each token.
    """

    coef: NonNegativeFloat = numerics(0.0, examples=[0.01])
    """Penalty weight. Set to 0 to disable."""
    estimator: Literal["k1", "k2", "k3", "abs"] = numerics("k3")
    """Estimator of the divergence (http://joschu.net/blog/kl-approx.html).

    With d = log p(policy) - log p(reference): k1: d; k2: d^2 / 2; k3: exp(-d) - 1 + d; abs: |d|."""


class AlgorithmConfig(ComponentConfig):
    """Objective learned from the rewards of a group of completions of the same prompt."""

    slot: ClassVar = "algorithm"
    is_slot: ClassVar = True
    builds_what: ClassVar = "a function or object that is called with the logits and the batch"
    built_attributes: ClassVar = ("__call__",)
    default_name: ClassVar = "grpo"
    needs_whole_sequences: ClassVar[bool] = False
    """Whether the loss of a token depends on the other tokens of its completion."""
    needs_reference: ClassVar[bool] = False
    """Whether the loss reads the reference's log-probabilities even without a penalty."""
    learns_from_rewards: ClassVar[bool] = True
    """Whether rewards determine the loss. If false, rewards are only measured."""

    length_norm: LengthNorm = numerics("token_mean")
    """Normalization of the loss by length.

    token_mean: all tokens of the step weigh the same; sequence_mean: all completions weigh the
    same; sequence_sum: tokens are summed over a completion, completions are averaged; constant:
    like sequence_sum, divided by the longest completion allowed."""
    entropy_coef: NonNegativeFloat = numerics(0.0, examples=[0.001])
    """Weight of the policy's entropy, which is added to the maximized objective."""
    entropy_metric: OrAuto[bool] = bookkeeping("auto", resume=True, examples=[False])
    """Whether to log the policy's entropy (rl/entropy), which takes memory for all logits.

    `auto`: if model.vocab_size is below 65,536. With entropy_coef it is logged in any case."""
    kl: DivergenceConfig = section(DivergenceConfig)
    correction: CorrectionConfig = component(CorrectionConfig)

    @property
    def learns_from_equal_rewards(self) -> bool:
        """Whether a group with equal rewards changes the weights."""
        return not self.learns_from_rewards or self.entropy_coef > 0 or self.kl.coef > 0


class RewardAlgorithmConfig(AlgorithmConfig):
    """Fields of algorithms that learn from rewards."""

    advantage: Advantage = numerics("group_mean")
    """Advantage of a reward r.

    group_mean: r - mean; group_std: (r - mean) / (std + 1e-6); leave_one_out: r - mean of the
    others; group_ratio: (r - mean) / mean; group_rank: rank of r in its group, from -1 (all others
    are better) to 1 (all others are worse); running_mean: r - running mean of all earlier rewards.
    """

    @property
    def learns_from_equal_rewards(self) -> bool:
        """Whether a group with equal rewards changes the weights.

        Every advantage relative to the group is zero then.
        """
        return self.advantage == "running_mean" or super().learns_from_equal_rewards


class ClippedAlgorithmConfig(RewardAlgorithmConfig):
    """Fields of algorithms with a clipped ratio."""

    max_log_ratio: PositiveFloat = numerics(10.0)
    """Bound of |log p(policy) - log p(generator)| before exponentiation."""
    clip_low: Fraction = numerics(0.2)
    """Lower clipping bound: the ratio of policy to generator is clipped at 1 - clip_low."""
    clip_high: NonNegativeFloat = numerics(0.2)
    """Upper clipping bound: the ratio is clipped at 1 + clip_high."""


class GrpoConfig(ClippedAlgorithmConfig):
    """GRPO: clipped token ratios, group-mean baseline (https://arxiv.org/abs/2402.03300)."""

    name: Literal["grpo"] = numerics("grpo")
    builds: ClassVar = f"{LOSS_MODULE}:ClippedRatioLoss"


class DapoConfig(ClippedAlgorithmConfig):
    """DAPO: GRPO with a higher upper bound, token mean (https://arxiv.org/abs/2503.14476).

    All tokens of a step weigh the same.
    """

    name: Literal["dapo"] = numerics("dapo")
    builds: ClassVar = f"{LOSS_MODULE}:ClippedRatioLoss"
    advantage: Advantage = numerics("group_std")
    """Advantage of a reward, see `grpo`. The paper divides by the group's standard deviation."""
    clip_high: NonNegativeFloat = numerics(0.28)
    """Upper clipping bound: the ratio of policy to generator is clipped at 1 + clip_high."""


class DrGrpoConfig(ClippedAlgorithmConfig):
    """Dr. GRPO: no division by length or group deviation (https://arxiv.org/abs/2503.20783)."""

    name: Literal["dr_grpo"] = numerics("dr_grpo")
    builds: ClassVar = f"{LOSS_MODULE}:ClippedRatioLoss"
    length_norm: LengthNorm = numerics("constant")
    """Normalization by length, see `grpo`.

    The default is a constant, so that the tokens of long and short completions weigh the same."""


class ReinforceConfig(RewardAlgorithmConfig):
    """REINFORCE: the gradient of log p times the advantage."""

    name: Literal["reinforce"] = numerics("reinforce")
    builds: ClassVar = f"{LOSS_MODULE}:PolicyGradientLoss"
    advantage: Advantage = numerics("running_mean")
    """Advantage of a reward, see `grpo`. The default baseline is the mean of earlier rewards."""


class RlooConfig(RewardAlgorithmConfig):
    """RLOO: REINFORCE with a leave-one-out baseline (https://arxiv.org/abs/2402.14740).

    The baseline of a completion is the mean reward of the other completions.
    """

    name: Literal["rloo"] = numerics("rloo")
    builds: ClassVar = f"{LOSS_MODULE}:PolicyGradientLoss"
    advantage: Advantage = numerics("leave_one_out")
    """Advantage of a reward, see `grpo`."""
    length_norm: LengthNorm = numerics("sequence_sum")
    """Normalization by length, see `grpo`.

    The paper uses the log-probability of whole completions."""


class MaxRlConfig(RewardAlgorithmConfig):
    """MaxRL: (r - mean) / mean, so that rarely solved prompts weigh more."""

    name: Literal["max_rl"] = numerics("max_rl")
    builds: ClassVar = f"{LOSS_MODULE}:PolicyGradientLoss"
    advantage: Advantage = numerics("group_ratio")
    """Advantage of a reward, see `grpo`."""


class GspoConfig(ClippedAlgorithmConfig):
    """GSPO: one ratio per completion (https://arxiv.org/abs/2507.18071).

    The ratio is the geometric mean of the token ratios.
    """

    name: Literal["gspo"] = numerics("gspo")
    builds: ClassVar = f"{LOSS_MODULE}:SequenceRatioLoss"
    needs_whole_sequences: ClassVar = True
    advantage: Advantage = numerics("group_std")
    """Advantage of a reward, see `grpo`."""
    length_norm: LengthNorm = numerics("sequence_mean")
    """Normalization by length, see `grpo`. The paper averages over completions."""
    clip_low: Fraction = numerics(3e-4)
    """Lower clipping bound: the ratio is clipped at 1 - clip_low.

    Ratios of whole completions stay much closer to 1 than ratios of tokens."""
    clip_high: NonNegativeFloat = numerics(4e-4)
    """Upper clipping bound: the ratio is clipped at 1 + clip_high."""


class CispoConfig(ClippedAlgorithmConfig):
    """CISPO: the clipped ratio is a gradient-free weight (https://arxiv.org/abs/2506.13585).

    No token is dropped.
    """

    name: Literal["cispo"] = numerics("cispo")
    builds: ClassVar = f"{LOSS_MODULE}:ClippedWeightLoss"
    clip_low: Fraction = numerics(1.0)
    """Lower bound of the weight: 1 - clip_low. Set to 1 for no lower bound."""


class DppoConfig(RewardAlgorithmConfig):
    """DPPO: masks tokens whose probability moved too far (https://arxiv.org/abs/2602.04879).

    A token is masked if its probability has already moved too far in the direction of its
    advantage. This is the variant with the binary total variation.
    """

    name: Literal["dppo"] = numerics("dppo")
    builds: ClassVar = f"{LOSS_MODULE}:BoundedProbabilityLoss"
    max_log_ratio: PositiveFloat = numerics(10.0)
    """Bound of |log p(policy) - log p(generator)| before exponentiation."""
    max_rise: Fraction = numerics(0.2)
    """Largest excess of a token's probability over the generator's at which it is raised."""
    max_fall: Fraction = numerics(0.2)
    """Largest deficit of a token's probability at which it is lowered."""


class RefKlConfig(AlgorithmConfig):
    """On-policy distillation: the advantage is log p(reference) - log p(generator) of a token.

    Rewards are measured, but do not affect the loss.
    """

    name: Literal["ref_kl"] = numerics("ref_kl")
    builds: ClassVar = f"{LOSS_MODULE}:DistillationLoss"
    needs_reference: ClassVar = True
    learns_from_rewards: ClassVar = False
    max_log_ratio: PositiveFloat = numerics(10.0)
    """Bound of |log p(policy) - log p(generator)| before exponentiation."""
