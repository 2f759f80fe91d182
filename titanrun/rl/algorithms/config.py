"""The algorithm slot and its choices: what is learned from rewards."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import numerics, section
from titanrun.config.types import Fraction, NonNegativeFloat, PositiveFloat

Advantage = Literal[
    "group_mean", "group_std", "leave_one_out", "group_ratio", "group_rank", "running_mean"
]
LengthNorm = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
LOSS = "titanrun.rl.algorithms.losses"


class DivergenceConfig(Config):
    """A penalty for policies that leave the reference: coef times an estimate of KL(policy || reference) of each token."""

    coef: NonNegativeFloat = numerics(0.0, examples=[0.01])
    """Weight of the penalty; 0: none."""
    estimator: Literal["k1", "k2", "k3", "abs"] = numerics("k3")
    """With d = log p(policy) - log p(reference): k1: d; k2: d^2 / 2; k3: exp(-d) - 1 + d; abs: |d| (http://joschu.net/blog/kl-approx.html)."""


class AlgorithmConfig(ComponentConfig):
    """What is learned from the rewards of a group of answers to the same prompt."""

    slot: ClassVar = "algorithm"
    is_slot: ClassVar = True
    default_name: ClassVar = "grpo"
    needs_whole_sequences: ClassVar[bool] = False
    """Whether the loss of a token depends on the other tokens of its answer."""
    needs_reference: ClassVar[bool] = False
    """Whether the loss reads the reference's log-probabilities whatever the penalty is."""
    learns_from_rewards: ClassVar[bool] = True
    """Whether rewards decide what is learned; without, they are only measured."""

    length_norm: LengthNorm = numerics("token_mean")
    """token_mean: every token of the step counts the same; sequence_mean: every answer does; sequence_sum: tokens are added up over an
    answer, answers averaged; constant: as sequence_sum, divided by the longest answer allowed."""
    entropy_coef: NonNegativeFloat = numerics(0.0, examples=[0.001])
    """Weight of the policy's entropy, which is added to what is maximised."""
    kl: DivergenceConfig = section(DivergenceConfig)


class RewardedConfig(AlgorithmConfig):
    """What algorithms that learn from rewards share."""

    advantage: Advantage = numerics("group_mean")
    """What a reward counts: group_mean: r - mean; group_std: (r - mean) / (std + 1e-6); leave_one_out: r - mean of the others;
    group_ratio: (r - mean) / mean; group_rank: the place of r in its group, from -1 (all others are better) to 1 (all are worse);
    running_mean: r - running mean of all rewards before."""


class ClippedConfig(RewardedConfig):
    """What algorithms with a clipped ratio share."""

    max_log_ratio: PositiveFloat = numerics(10.0)
    """Bound of log p(policy) - log p(generator) on either side, before it is exponentiated."""
    clip_low: Fraction = numerics(0.2)
    """How far below 1 the ratio of policy and generator counts."""
    clip_high: NonNegativeFloat = numerics(0.2)
    """How far above 1."""


class GrpoConfig(ClippedConfig):
    """GRPO: clipped token ratios, rewards against their group's mean (https://arxiv.org/abs/2402.03300)."""

    name: Literal["grpo"] = numerics("grpo")
    builds: ClassVar = f"{LOSS}:ClippedRatio"


class DapoConfig(ClippedConfig):
    """DAPO: GRPO with more room upwards, and every token of a step alike (https://arxiv.org/abs/2503.14476)."""

    name: Literal["dapo"] = numerics("dapo")
    builds: ClassVar = f"{LOSS}:ClippedRatio"
    advantage: Advantage = numerics("group_std")
    """As of grpo; the paper divides by the group's standard deviation."""
    clip_high: NonNegativeFloat = numerics(0.28)
    """How far above 1 the ratio of policy and generator counts."""


class DrGrpoConfig(ClippedConfig):
    """Dr. GRPO: no division by an answer's length or a group's deviation (https://arxiv.org/abs/2503.20783)."""

    name: Literal["dr_grpo"] = numerics("dr_grpo")
    builds: ClassVar = f"{LOSS}:ClippedRatio"
    length_norm: LengthNorm = numerics("constant")
    """As of grpo; a constant, so that long answers weigh no less a token than short ones."""


class ReinforceConfig(RewardedConfig):
    """REINFORCE: the gradient of log p times the advantage."""

    name: Literal["reinforce"] = numerics("reinforce")
    builds: ClassVar = f"{LOSS}:PolicyGradient"
    advantage: Advantage = numerics("running_mean")
    """As of grpo; without groups the baseline is the mean of the rewards so far."""


class RlooConfig(RewardedConfig):
    """RLOO: REINFORCE whose baseline is the mean reward of the other answers (https://arxiv.org/abs/2402.14740)."""

    name: Literal["rloo"] = numerics("rloo")
    builds: ClassVar = f"{LOSS}:PolicyGradient"
    advantage: Advantage = numerics("leave_one_out")
    """As of grpo."""
    length_norm: LengthNorm = numerics("sequence_sum")
    """As of grpo; the paper takes the log-probability of whole answers."""


class MaxRlConfig(RewardedConfig):
    """MaxRL: (r - mean) / mean, so that rarely solved prompts weigh more."""

    name: Literal["max_rl"] = numerics("max_rl")
    builds: ClassVar = f"{LOSS}:PolicyGradient"
    advantage: Advantage = numerics("group_ratio")
    """As of grpo."""


class GspoConfig(ClippedConfig):
    """GSPO: one ratio for the whole answer, the geometric mean of its tokens' (https://arxiv.org/abs/2507.18071)."""

    name: Literal["gspo"] = numerics("gspo")
    builds: ClassVar = f"{LOSS}:SequenceRatio"
    needs_whole_sequences: ClassVar = True
    advantage: Advantage = numerics("group_std")
    """As of grpo."""
    length_norm: LengthNorm = numerics("sequence_mean")
    """As of grpo; the paper averages over answers."""
    clip_low: Fraction = numerics(3e-4)
    """How far below 1 the ratio counts; whole answers stay much nearer to 1 than tokens."""
    clip_high: NonNegativeFloat = numerics(4e-4)
    """How far above 1."""


class CispoConfig(ClippedConfig):
    """CISPO: the clipped ratio is a weight without gradient, so that no token is dropped (https://arxiv.org/abs/2506.13585)."""

    name: Literal["cispo"] = numerics("cispo")
    builds: ClassVar = f"{LOSS}:ClippedWeight"
    clip_low: Fraction = numerics(1.0)
    """How far below 1 the weight may go; 1: the weight has no lower bound."""


class DppoConfig(RewardedConfig):
    """DPPO: tokens whose probability has already moved too far in the direction of their advantage are left out
    (https://arxiv.org/abs/2602.04879, with the binary total variation)."""

    name: Literal["dppo"] = numerics("dppo")
    builds: ClassVar = f"{LOSS}:BoundedProbability"
    max_log_ratio: PositiveFloat = numerics(10.0)
    """Bound of log p(policy) - log p(generator) on either side, before it is exponentiated."""
    max_rise: Fraction = numerics(0.2)
    """How far above the generator's a token's probability may be and still be raised."""
    max_fall: Fraction = numerics(0.2)
    """How far below it may be and still be lowered."""


class RefKlConfig(AlgorithmConfig):
    """On-policy distillation: the advantage of a token is log p(reference) - log p(generator); rewards are measured, not learned from."""

    name: Literal["ref_kl"] = numerics("ref_kl")
    builds: ClassVar = f"{LOSS}:Distillation"
    needs_reference: ClassVar = True
    learns_from_rewards: ClassVar = False
    max_log_ratio: PositiveFloat = numerics(10.0)
    """Bound of log p(policy) - log p(generator) on either side, before it is exponentiated."""
