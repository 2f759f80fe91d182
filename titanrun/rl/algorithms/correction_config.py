"""The correction slot and its choices: limits of the importance ratio outside the algorithm."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics
from titanrun.config.types import NonNegativeFloat, PositiveFloat

CORRECTION_MODULE = "titanrun.rl.algorithms.corrections"


class CorrectionConfig(ComponentConfig):
    """Limit of the importance ratio p(policy) / p(generator), beside the algorithm's clipping."""

    slot: ClassVar = "correction"
    is_slot: ClassVar = True
    default_name: ClassVar = "none"
    drops_tokens: ClassVar[bool] = False
    """Whether it removes tokens from the loss and from its denominator."""
    name: str = numerics()


class NoCorrectionConfig(CorrectionConfig):
    """The loss is that of the algorithm."""

    name: Literal["none"] = numerics("none")
    builds: ClassVar = f"{CORRECTION_MODULE}:NoCorrection"


class TruncatedConfig(CorrectionConfig):
    """A token weighs at most `max`, outside the algorithm's clipping.

    A loss with a ratio r is multiplied by min(r, max) / r, one without (reinforce, rloo, max_rl) by
    min(r, max). No gradient flows through the factor.
    """

    name: Literal["truncated"] = numerics("truncated")
    builds: ClassVar = f"{CORRECTION_MODULE}:TruncatedCorrection"
    max: PositiveFloat = numerics(2.0)
    """Largest ratio of policy to generator."""


class BoundsConfig(CorrectionConfig):
    """Bounds outside which a token is dropped from the loss."""

    drops_tokens: ClassVar = True
    low: NonNegativeFloat = numerics(0.5)
    """Smallest ratio of policy to generator that is kept."""
    high: PositiveFloat = numerics(2.0)
    """Largest ratio of policy to generator that is kept."""

    @model_validator(mode="after")
    def check_bounds_in_order(self) -> Self:
        """Raise a problem if no ratio is within the bounds."""
        if self.low > self.high:
            message = f"no ratio is between low {self.low:g} and high {self.high:g}"
            raise conflict_error(message, "low", "high", hint="use a low of at most high")
        return self


class MaskConfig(BoundsConfig):
    """Tokens with a ratio outside the bounds are dropped from the loss and its denominator."""

    name: Literal["mask"] = numerics("mask")
    builds: ClassVar = f"{CORRECTION_MODULE}:TokenMask"


class SequenceMaskConfig(BoundsConfig):
    """Completions whose ratio exp(mean log-ratio of their tokens) is outside are dropped."""

    name: Literal["sequence_mask"] = numerics("sequence_mask")
    builds: ClassVar = f"{CORRECTION_MODULE}:SequenceMask"
