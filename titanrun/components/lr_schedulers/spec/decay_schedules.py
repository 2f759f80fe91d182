"""Schedules that decay right after their warmup, or not at all, each by one formula."""

import math

from titanrun.components.lr_schedulers.config import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    InverseSqrtScheduleConfig,
    PolynomialScheduleConfig,
)
from titanrun.components.lr_schedulers.spec.warmup import DecaySchedule, WarmupSchedule

LONG_TIMESCALE = 10_000


class CosineSchedule(DecaySchedule):
    """Cosine decay: (1 + cos(pi p)) / 2 after a share p of the decay."""

    def __init__(self, config: CosineScheduleConfig) -> None:
        super().__init__(config)

    def decay_factor(self, step: int) -> float:
        """Return the remaining fraction of the way from the peak to the floor."""
        return 0.5 * (1.0 + math.cos(math.pi * self.decay_progress(step)))


class PolynomialSchedule(DecaySchedule):
    """Polynomial decay: (1 - p)^power after a share p of the decay."""

    def __init__(self, config: PolynomialScheduleConfig) -> None:
        super().__init__(config)
        self.power = config.power

    def decay_factor(self, step: int) -> float:
        """Return the remaining fraction of the way from the peak to the floor."""
        return float((1 - self.decay_progress(step)) ** self.power)


class InverseSqrtSchedule(WarmupSchedule):
    """Inverse square root decay: 1 / sqrt(1 + s / timescale), s steps after the warmup."""

    def __init__(self, config: InverseSqrtScheduleConfig) -> None:
        super().__init__(config)
        self.timescale = config.timescale or self.warmup_steps or LONG_TIMESCALE

    def decay_factor(self, step: int) -> float:
        """Return the remaining fraction of the way from the peak to the floor."""
        return 1 / math.sqrt(1 + (step - self.warmup_steps) / self.timescale)


class ConstantSchedule(WarmupSchedule):
    """Constant peak."""

    def __init__(self, config: ConstantScheduleConfig) -> None:
        super().__init__(config)

    def decay_factor(self, step: int) -> float:
        """Return 1: no decay."""
        return 1.0
