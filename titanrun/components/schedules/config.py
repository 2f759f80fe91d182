"""The learning-rate schedule slot and its choices."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics
from titanrun.config.types import Fraction, NonNegativeInt, OrAuto, PositiveFloat, PositiveInt


class ScheduleConfig(ComponentConfig):
    """The learning rate as a function of the step."""

    slot: ClassVar = "lr_scheduler"
    is_slot: ClassVar = True
    default_name: ClassVar = "warmup_stable_decay"


class CurveConfig(ScheduleConfig):
    """What every shipped schedule has: where it begins, and where it ends."""

    warmup_start_factor: Fraction = numerics(0.0, examples=[0.1])
    """Where the warmup begins, as a share of the peak."""
    min_lr_factor: Fraction = numerics(0.0, examples=[0.1])
    """Floor of the decay as a share of the peak."""
    first_step: Literal[0, 1] = numerics(1)
    """What the first step counts as: 1 takes the first step of the warmup, 0 still its start (transformers and verl)."""


class WarmedConfig(CurveConfig):
    """A schedule that begins with a linear warmup."""

    # 200 in torchtitan 0.2.2, which is cut where the run is shorter
    warmup_steps: OrAuto[NonNegativeInt] | None = numerics("auto", unit="steps", examples=[200])
    """Steps of linear warmup; the first step already uses lr / warmup_steps. `auto` is min(200, steps // 10); null: as epochs decide."""


class DecayingConfig(WarmedConfig):
    """A schedule that reaches its floor at a horizon."""

    total_steps: OrAuto[PositiveInt] | None = numerics("auto", unit="steps", examples=[10000])
    """Horizon of the schedule; `auto` is training.steps; null: as epochs decide."""

    def is_flat(self) -> bool:
        """Whether nothing decays, so that neither horizon nor floor is read."""
        return False


class WarmupStableDecayConfig(DecayingConfig):
    """Linear warmup, a plateau, then decay to a floor."""

    name: Literal["warmup_stable_decay"] = numerics("warmup_stable_decay")
    builds: ClassVar = "titanrun.components.schedules.warmup_stable_decay:WarmupStableDecay"
    decay_ratio: Fraction | None = numerics(None, examples=[0.8])
    """Share of the horizon spent decaying; null: everything after warmup; 0: no decay."""
    decay_type: Literal["linear", "sqrt", "cosine"] = numerics("linear")
    """Shape of the decay."""

    def is_flat(self) -> bool:
        """Whether nothing decays, so that neither horizon nor floor is read."""
        return self.decay_ratio == 0


class CosineConfig(DecayingConfig):
    """Linear warmup, then half a cosine down to a floor (https://arxiv.org/abs/1608.03983, without restarts)."""

    name: Literal["cosine"] = numerics("cosine")
    builds: ClassVar = "titanrun.components.schedules.decays:Cosine"


class PolynomialConfig(DecayingConfig):
    """Linear warmup, then a power of the share that is left."""

    name: Literal["polynomial"] = numerics("polynomial")
    builds: ClassVar = "titanrun.components.schedules.decays:Polynomial"
    power: PositiveFloat = numerics(2.0)
    """Power of the share of the horizon that is left; 1 is linear."""


class InverseSqrtConfig(WarmedConfig):
    """Linear warmup, then one over the root of the step (https://arxiv.org/abs/1706.03762): it needs no horizon and has no end."""

    name: Literal["inverse_sqrt"] = numerics("inverse_sqrt")
    builds: ClassVar = "titanrun.components.schedules.decays:InverseSqrt"
    timescale: PositiveInt | None = numerics(None, unit="steps", examples=[10000])
    """Steps after which the rate has fallen to 1 / sqrt(2); null: as long as the warmup, 10,000 where there is none."""


class ConstantConfig(WarmedConfig):
    """Linear warmup, then the peak for ever."""

    name: Literal["constant"] = numerics("constant")
    builds: ClassVar = "titanrun.components.schedules.decays:Constant"


class OneCycleConfig(CurveConfig):
    """Up to the peak and down below the start, in two arcs (https://arxiv.org/abs/1708.07120), as torch's OneCycleLR."""

    name: Literal["one_cycle"] = numerics("one_cycle")
    builds: ClassVar = "titanrun.components.schedules.one_cycle:OneCycle"
    total_steps: OrAuto[PositiveInt] | None = numerics("auto", unit="steps", examples=[10000])
    """Steps of the cycle; `auto` is training.steps; null: as epochs decide."""
    warmup_start_factor: Fraction = numerics(0.04, examples=[0.1])
    """Where the warmup begins, as a share of the peak."""
    min_lr_factor: Fraction = numerics(4e-6, examples=[0.1])
    """Where the last step ends, as a share of the peak."""
    warmup_share: Fraction = numerics(0.3)
    """Share of the horizon that goes up."""
    anneal: Literal["cosine", "linear"] = numerics("cosine")
    """Shape of both arcs."""
