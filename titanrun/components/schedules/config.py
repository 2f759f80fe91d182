"""The learning-rate schedule slot and its choices."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics
from titanrun.config.types import Fraction, NonNegativeInt, OrAuto, PositiveInt


class ScheduleConfig(ComponentConfig):
    """The learning rate as a function of the step."""

    slot: ClassVar = "lr_scheduler"
    is_slot: ClassVar = True
    default_name: ClassVar = "warmup_stable_decay"


class WarmupStableDecayConfig(ScheduleConfig):
    """Linear warmup, a plateau, then decay to a floor."""

    name: Literal["warmup_stable_decay"] = numerics("warmup_stable_decay")
    builds: ClassVar = "titanrun.components.schedules.warmup_stable_decay:WarmupStableDecay"
    # 200 in torchtitan 0.2.2, which is cut where the run is shorter
    warmup_steps: OrAuto[NonNegativeInt] | None = numerics("auto", unit="steps", examples=[200])
    """Steps of linear warmup; the first step already uses lr / warmup_steps. `auto` is min(200, steps // 10); null: as epochs decide."""
    total_steps: OrAuto[PositiveInt] | None = numerics("auto", unit="steps", examples=[10000])
    """Horizon of the schedule; `auto` is training.steps; null: as epochs decide."""
    decay_ratio: Fraction | None = numerics(None, examples=[0.8])
    """Share of the horizon spent decaying; null: everything after warmup; 0: no decay."""
    decay_type: Literal["linear", "sqrt", "cosine"] = numerics("linear")
    """Shape of the decay."""
    min_lr_factor: Fraction = numerics(0.0, examples=[0.1])
    """Floor of the decay as a share of the peak."""
