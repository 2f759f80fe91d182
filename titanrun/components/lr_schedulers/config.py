"""The learning-rate schedule slot and its choices."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import ReadWhen, numerics
from titanrun.config.plugin_builders import describe_value
from titanrun.config.types import Fraction, NonNegativeInt, OrAuto, PositiveFloat, PositiveInt


class LRSchedulerConfig(ComponentConfig):
    """Learning rate as a function of the step."""

    slot: ClassVar = "lr_scheduler"
    is_slot: ClassVar = True
    builds_what: ClassVar = "an object whose factor(step) is a share of optimizer.lr"
    built_attributes: ClassVar = ("factor",)
    default_name: ClassVar = "warmup_stable_decay"

    def find_build_fault(self, built: Any) -> str | None:
        """Also compute the factor of the first step, which must be a number."""
        fault = super().find_build_fault(built)
        if fault is not None:
            return fault
        return find_factor_fault(built.factor(0), step=0)

    def check_results(self, built: Any, fail: Callable[[str], NoReturn]) -> Any:
        """Return a schedule that checks the factor of every step."""
        return CheckedSchedule(built, fail)


@dataclass(frozen=True, slots=True)
class CheckedSchedule:
    """Schedule of a plug-in, whose factors are numbers.

    Args:
        schedule: what the plug-in built.
        fail: raises the problem of the plug-in's code.
    """

    schedule: Any
    fail: Callable[[str], NoReturn]

    def factor(self, step: int) -> float:
        """Return the share of optimizer.lr of a step, counted from 0."""
        found = self.schedule.factor(step)
        fault = find_factor_fault(found, step=step)
        if fault is not None:
            self.fail(fault)
        return float(found)


def find_factor_fault(found: Any, *, step: int) -> str | None:
    """Return what is wrong with a factor of a schedule, None if it is a number."""
    try:
        is_number = not isinstance(found, str) and math.isfinite(found)
    except (TypeError, ValueError):
        is_number = False
    return None if is_number else f"its factor({step}) returned {describe_value(found)}"


HAS_WARMUP = ReadWhen(
    "start-needs-warmup",
    ".warmup_steps",
    "is 0",
    "set lr_scheduler.warmup_steps, or remove it",
    not_values=(0,),
)
HAS_DECAY = ReadWhen(
    "floor-needs-decay",
    ".decay_ratio",
    "is 0",
    "set another decay_ratio, or remove it",
    not_values=(0,),
)
IS_NOT_CONSTANT = ReadWhen(
    "floor-needs-a-decay",
    ".name",
    "is constant",
    "remove it, or choose a schedule that decays",
    not_values=("constant",),
)


class StandardLRSchedulerConfig(LRSchedulerConfig):
    """Common settings of all shipped schedules: start and floor."""

    warmup_start_factor: Fraction = numerics(0.0, examples=[0.1], read_when=HAS_WARMUP)
    """Start of the warmup, as a share of the peak."""
    min_lr_factor: Fraction = numerics(0.0, examples=[0.1], read_when=(IS_NOT_CONSTANT, HAS_DECAY))
    """Floor of the decay, as a share of the peak."""
    first_step: Literal[0, 1] = numerics(1, read_when=HAS_WARMUP)
    """Index of the first step: 1 uses the first step of the warmup, 0 still its start (transformers
    and verl)."""


class WarmupScheduleConfig(StandardLRSchedulerConfig):
    """A schedule that begins with a linear warmup."""

    # 200 in torchtitan 0.2.2, which truncates it if the run is shorter
    warmup_steps: OrAuto[NonNegativeInt] | None = numerics("auto", unit="steps", examples=[200])
    """Steps of linear warmup. The first step already uses lr / warmup_steps. `auto` is min(200,
    steps // 10). If null, derived from epochs."""
    warmup_ratio: Fraction | None = numerics(None, examples=[0.03])
    """Share of the training steps for the warmup, rounded up, in place of warmup_steps."""


class DecayScheduleConfig(WarmupScheduleConfig):
    """A schedule that reaches its floor at a horizon."""

    total_steps: OrAuto[PositiveInt] | None = numerics("auto", unit="steps", examples=[10000])
    """Horizon of the schedule. `auto` is training.steps. If null, derived from epochs."""

    def is_flat(self) -> bool:
        """Return whether nothing decays, so that horizon and floor have no effect."""
        return False


class WarmupStableDecayConfig(DecayScheduleConfig):
    """Linear warmup, a plateau, then decay to a floor."""

    name: Literal["warmup_stable_decay"] = numerics("warmup_stable_decay")
    builds: ClassVar = (
        "titanrun.components.lr_schedulers.spec.warmup_stable_decay:WarmupStableDecaySchedule"
    )
    decay_ratio: Fraction | None = numerics(None, examples=[0.8])
    """Share of the horizon for the decay. If null, everything after the warmup. Set to 0 to disable
    the decay."""
    decay_type: Literal["linear", "sqrt", "cosine"] = numerics("linear", read_when=HAS_DECAY)
    """Shape of the decay."""

    def is_flat(self) -> bool:
        """Return whether nothing decays, so that horizon and floor have no effect."""
        return self.decay_ratio == 0


class CosineScheduleConfig(DecayScheduleConfig):
    """Linear warmup, then half a cosine down to a floor.

    See https://arxiv.org/abs/1608.03983, without restarts.
    """

    name: Literal["cosine"] = numerics("cosine")
    builds: ClassVar = "titanrun.components.lr_schedulers.spec.decay_schedules:CosineSchedule"


class PolynomialScheduleConfig(DecayScheduleConfig):
    """Linear warmup, then a power of the remaining share of the horizon."""

    name: Literal["polynomial"] = numerics("polynomial")
    builds: ClassVar = "titanrun.components.lr_schedulers.spec.decay_schedules:PolynomialSchedule"
    power: PositiveFloat = numerics(2.0)
    """Power of the remaining share of the horizon. 1 is linear."""


class InverseSqrtScheduleConfig(WarmupScheduleConfig):
    """Linear warmup, then one over the root of the step, without horizon and end.

    See https://arxiv.org/abs/1706.03762.
    """

    name: Literal["inverse_sqrt"] = numerics("inverse_sqrt")
    builds: ClassVar = "titanrun.components.lr_schedulers.spec.decay_schedules:InverseSqrtSchedule"
    timescale: PositiveInt | None = numerics(None, unit="steps", examples=[10000])
    """Steps after which the rate has fallen to 1 / sqrt(2). If null, the length of the warmup, or
    10,000 without one."""


class ConstantScheduleConfig(WarmupScheduleConfig):
    """Linear warmup, then a constant peak."""

    name: Literal["constant"] = numerics("constant")
    builds: ClassVar = "titanrun.components.lr_schedulers.spec.decay_schedules:ConstantSchedule"


class OneCycleConfig(StandardLRSchedulerConfig):
    """Increase to the peak, then decrease below the start, as in torch's OneCycleLR.

    See https://arxiv.org/abs/1708.07120.
    """

    name: Literal["one_cycle"] = numerics("one_cycle")
    builds: ClassVar = "titanrun.components.lr_schedulers.spec.one_cycle:OneCycleSchedule"
    total_steps: OrAuto[PositiveInt] | None = numerics("auto", unit="steps", examples=[10000])
    """Steps of the cycle. `auto` is training.steps. If null, derived from epochs."""
    warmup_start_factor: Fraction = numerics(0.04, examples=[0.1])
    """Start of the warmup, as a share of the peak."""
    min_lr_factor: Fraction = numerics(4e-6, examples=[0.1])
    """End of the last step, as a share of the peak."""
    warmup_share: Fraction = numerics(0.3)
    """Share of the horizon for the increase."""
    anneal: Literal["cosine", "linear"] = numerics("cosine")
    """Shape of both phases."""
