"""Losses of preferences: pairs of replies, and single replies with a label."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.components.losses.config import LossConfig
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics
from titanrun.config.types import Fraction, NonNegativeFloat, PositiveFloat


class PairLossConfig(LossConfig):
    """Loss of pairs of replies to the same prompt, one of them preferred."""

    supports_loss_parallel: ClassVar = True
    compares: ClassVar = "pairs"


class DpoConfig(PairLossConfig):
    """Direct preference optimization of pairs of replies.

    The model learns to prefer one reply of a pair while it stays near its weights before the run.
    """

    name: Literal["dpo"] = numerics("dpo")
    builds: ClassVar = "titanrun.components.losses.dpo:DPOLoss"
    needs_reference: ClassVar = True
    beta: PositiveFloat = numerics(0.1)
    """Penalty for deviation from the reference (https://arxiv.org/abs/2305.18290)."""
    variant: Literal["sigmoid", "hinge", "robust", "apo_zero", "sigmoid_norm"] = numerics("sigmoid")
    """Loss of a pair's margin. sigmoid: the paper's. hinge: 0 beyond a margin of 1
    (https://arxiv.org/abs/2305.10425). robust: unbiased if label_smoothing of the labels are
    swapped (https://arxiv.org/abs/2403.00409). apo_zero: raises the preferred reply and lowers the
    other, each by itself (https://arxiv.org/abs/2408.06266). sigmoid_norm: the paper's, of means
    over tokens."""
    label_smoothing: Fraction = numerics(0.0, examples=[0.1])
    """Share of the pairs assumed to have swapped labels (conservative DPO), with variant sigmoid or
    robust."""
    nll_weight: NonNegativeFloat = numerics(0.0, examples=[1.0])
    """Weight of the mean cross entropy of the preferred replies' tokens, added to the loss."""

    @property
    def nll_tokens(self) -> Literal["replies"] | None:
        """Compared replies, if their cross entropy has a weight."""
        return "replies" if self.nll_weight else None

    @model_validator(mode="after")
    def _check_smoothing(self) -> Self:
        if self.label_smoothing and self.variant not in ("sigmoid", "robust"):
            raise conflict_error(
                f"variant {self.variant} has no label_smoothing",
                "label_smoothing",
                "variant",
                hint="set label_smoothing: 0, or variant: sigmoid",
            )
        if self.variant == "robust" and self.label_smoothing >= 0.5:
            raise conflict_error(
                f"label_smoothing {self.label_smoothing:g} leaves no preference to learn",
                "label_smoothing",
                "variant",
                hint="set label_smoothing below 0.5",
            )
        return self


class IpoConfig(PairLossConfig):
    """Identity preference optimization of pairs of replies (https://arxiv.org/abs/2310.12036).

    The margin over the reference, of means over tokens, approaches 1 / (2 * beta) instead of
    growing without bound.
    """

    name: Literal["ipo"] = numerics("ipo")
    builds: ClassVar = "titanrun.components.losses.dpo:IPOLoss"
    needs_reference: ClassVar = True
    beta: PositiveFloat = numerics(0.1)
    """Penalty for deviation from the reference, tau in the paper."""


class CpoConfig(PairLossConfig):
    """Contrastive preference optimization of pairs of replies, without a reference.

    See https://arxiv.org/abs/2401.08417.
    """

    name: Literal["cpo"] = numerics("cpo")
    builds: ClassVar = "titanrun.components.losses.cpo:CPOLoss"
    beta: PositiveFloat = numerics(0.1)
    """Steepness of the loss of a margin."""
    label_smoothing: Fraction = numerics(0.0, examples=[0.1])
    """Share of the pairs assumed to have swapped labels."""
    nll_weight: NonNegativeFloat = numerics(1.0)
    """Weight of the mean cross entropy of the preferred replies' tokens, added to the loss."""

    @property
    def nll_tokens(self) -> Literal["replies"] | None:
        """Compared replies, if their cross entropy has a weight."""
        return "replies" if self.nll_weight else None


class SimpoConfig(PairLossConfig):
    """Simple preference optimization of pairs of replies, without a reference.

    It compares mean log-probabilities per token with a target margin
    (https://arxiv.org/abs/2405.14734).
    """

    name: Literal["simpo"] = numerics("simpo")
    builds: ClassVar = "titanrun.components.losses.cpo:SimPOLoss"
    beta: PositiveFloat = numerics(2.0)
    """Steepness of the loss of a margin."""
    gamma: NonNegativeFloat = numerics(1.0)
    """Target margin, subtracted from beta times the difference of the means."""
    label_smoothing: Fraction = numerics(0.0, examples=[0.1])
    """Share of the pairs assumed to have swapped labels."""
    nll_weight: NonNegativeFloat = numerics(0.0, examples=[1.0])
    """Weight of the mean cross entropy of the preferred replies' tokens, added to the loss."""

    @property
    def nll_tokens(self) -> Literal["replies"] | None:
        """Compared replies, if their cross entropy has a weight."""
        return "replies" if self.nll_weight else None


class OrpoConfig(PairLossConfig):
    """Odds ratio preference optimization of pairs of replies, without a reference.

    It adds the odds ratio of both replies to the cross entropy of the preferred one, so it needs no
    supervised fine-tuning before it (https://arxiv.org/abs/2403.07691).
    """

    name: Literal["orpo"] = numerics("orpo")
    builds: ClassVar = "titanrun.components.losses.orpo:ORPOLoss"
    beta: PositiveFloat = numerics(0.1)
    """Weight of the odds ratio, lambda in the paper."""
    nll_on: Literal["all", "replies"] = numerics("all")
    """Tokens of the preferred conversation in the cross entropy: all of them, or those of the
    compared reply."""

    @property
    def nll_tokens(self) -> Literal["all", "replies"]:
        """Tokens in the recipe."""
        return self.nll_on


class RewardModelConfig(PairLossConfig):
    """Loss of a reward model: the score of the preferred reply should be the higher one.

    The Bradley-Terry model of pairs (https://arxiv.org/abs/1706.03741). The score is the output of
    a scalar head at the last token of a conversation.
    """

    name: Literal["reward"] = numerics("reward")
    builds: ClassVar = "titanrun.components.losses.reward:RewardModelLoss"
    supports_loss_parallel: ClassVar = False
    head: ClassVar = "scalar"
    center_coefficient: NonNegativeFloat = numerics(0.0, examples=[0.01])
    """Weight of the squared sum of both scores, which keeps scores around 0
    (https://arxiv.org/abs/2312.09244)."""


class KtoConfig(LossConfig):
    """Kahneman-Tversky optimization of single replies, each labelled as desirable or not.

    The model learns to prefer desirable replies while it stays near its weights before the run
    (https://arxiv.org/abs/2402.01306).
    """

    name: Literal["kto"] = numerics("kto")
    builds: ClassVar = "titanrun.components.losses.kto:KTOLoss"
    supports_loss_parallel: ClassVar = True
    compares: ClassVar = "labels"
    needs_reference: ClassVar = True
    beta: PositiveFloat = numerics(0.1)
    """Penalty for deviation from the reference."""
    desirable_weight: NonNegativeFloat = numerics(1.0, examples=[1.33])
    """Weight of desirable replies."""
    undesirable_weight: NonNegativeFloat = numerics(1.0, examples=[1.33])
    """Weight of undesirable replies. Choose both so that their sums over the data are similar."""
    variant: Literal["kto", "apo_zero"] = numerics("kto")
    """Reference point of a reply. kto: how far the model is from its reference on replies to other
    prompts, estimated in each step with two further forward passes. apo_zero: 0
    (https://arxiv.org/abs/2408.06266)."""
