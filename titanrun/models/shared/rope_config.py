"""rope_scaling slot, and the config of rotary position embedding that families share."""

from math import log
from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import component, numerics
from titanrun.config.types import NonNegativeFloat, OrAuto, PositiveFloat, PositiveInt


class RopeScalingConfig(ComponentConfig):
    """Scaling of RoPE frequencies for contexts longer than the base was chosen for."""

    slot: ClassVar = "rope_scaling"
    is_slot: ClassVar = True
    builds_what: ClassVar = "the scaled frequencies, a tensor"
    built_attributes: ClassVar = ("shape",)

    def cos_sin_scale(self) -> float:
        """Return the factor on the cosines and sines of scaled frequencies."""
        return 1.0

    def attention_score_scale(self) -> float:
        """Return the factor on attention scores, for families that scale them with the context."""
        return 1.0


class Llama3RopeScalingConfig(RopeScalingConfig):
    """Llama 3.1's rule: divide long wavelengths by `factor`, keep short ones, ramp between."""

    name: Literal["llama3"] = numerics("llama3")
    builds: ClassVar = "titanrun.models.shared.rope:apply_llama3_scaling"
    factor: PositiveFloat = numerics(8.0)
    """Divisor of the frequencies whose wavelength exceeds the original context over
    low_freq_factor.
    """
    low_freq_factor: PositiveFloat = numerics(1.0)
    """Wavelengths above original_max_position_embeddings / low_freq_factor are fully scaled."""
    high_freq_factor: PositiveFloat = numerics(4.0)
    """Wavelengths below original_max_position_embeddings / high_freq_factor are unchanged."""
    original_max_position_embeddings: PositiveInt = numerics(8192, unit="tokens")
    """Context length before scaling."""


class YarnRopeScalingConfig(RopeScalingConfig):
    """YaRN (https://arxiv.org/abs/2309.00071): pairs that rotate rarely are slowed down.

    Pairs that rotate rarely within the original context are slowed down by `factor`, those that
    rotate often are unchanged, with a linear ramp over the pairs between. m(x) = 0.1 x ln(factor) +
    1 compensates for flatter attention.
    """

    name: Literal["yarn"] = numerics("yarn")
    builds: ClassVar = "titanrun.models.shared.rope:apply_yarn_scaling"
    factor: PositiveFloat = numerics(40.0)
    """Divisor of the frequencies of the pairs that rotate less than beta_slow times."""
    beta_fast: PositiveFloat = numerics(32.0, unit="turns")
    """Pairs that rotate more often than this within the original context are unchanged."""
    beta_slow: PositiveFloat = numerics(1.0, unit="turns")
    """Pairs that rotate less often than this within the original context are fully slowed down."""
    original_max_position_embeddings: PositiveInt = numerics(4096, unit="tokens")
    """Context length before scaling."""
    truncate: bool = numerics(True)
    """Whether the ramp begins and ends at whole pairs."""
    mscale: NonNegativeFloat = numerics(1.0)
    """Cosines and sines are multiplied by m(mscale) / m(mscale_all_dim)."""
    mscale_all_dim: NonNegativeFloat = numerics(0.0)
    """See mscale. deepseek_v3 also multiplies attention scores by m(mscale_all_dim)^2."""
    attention_factor: PositiveFloat | None = numerics(None, examples=[1.0])
    """Factor on cosines and sines. null: the factor of the mscales."""

    def compute_mscale(self, mscale: float) -> float:
        """Return m(mscale), which is 1 without scaling."""
        return 0.1 * mscale * log(self.factor) + 1 if self.factor > 1 else 1.0

    def cos_sin_scale(self) -> float:
        """Return the factor on cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        return self.compute_mscale(self.mscale) / self.compute_mscale(self.mscale_all_dim)

    def attention_score_scale(self) -> float:
        """Return the factor on attention scores: queries and keys each grow."""
        return self.compute_mscale(self.mscale_all_dim) ** 2


class RopeConfig(Config):
    """Rotary position embedding (https://arxiv.org/abs/2104.09864)."""

    theta: OrAuto[PositiveFloat] = numerics("auto", examples=[500000.0])
    """Base of the frequencies theta^(-2i/head_dim)."""
    scaling: OrAuto[RopeScalingConfig] | None = component("auto")
    """Frequency scaling for long contexts. null: no scaling."""
