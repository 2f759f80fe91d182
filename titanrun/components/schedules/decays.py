"""Schedules that decay right after their warmup, or not at all. Each is one formula."""

import math

from titanrun.components.schedules.config import (
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    PolynomialConfig,
)
from titanrun.components.schedules.warmup import Decaying, Warmed

LONG_TIMESCALE = 10_000


class Cosine(Decaying):
    """(1 + cos(pi p)) / 2 of the way to the floor is left after a share p of the decay."""

    def __init__(self, config: CosineConfig) -> None:
        super().__init__(config)

    def later(self, step: int) -> float:
        """What is left of the way from the peak to the floor."""
        return 0.5 * (1.0 + math.cos(math.pi * self.progress(step)))


class Polynomial(Decaying):
    """(1 - p)^power of the way to the floor is left after a share p of the decay."""

    def __init__(self, config: PolynomialConfig) -> None:
        super().__init__(config)
        self.power = config.power

    def later(self, step: int) -> float:
        """What is left of the way from the peak to the floor."""
        return float((1 - self.progress(step)) ** self.power)


class InverseSqrt(Warmed):
    """1 / sqrt(1 + s / timescale) is left s steps after the warmup."""

    def __init__(self, config: InverseSqrtConfig) -> None:
        super().__init__(config)
        self.timescale = config.timescale or self.warmup_steps or LONG_TIMESCALE

    def later(self, step: int) -> float:
        """What is left of the way from the peak to the floor."""
        return 1 / math.sqrt(1 + (step - self.warmup_steps) / self.timescale)


class Constant(Warmed):
    """The peak, for ever."""

    def __init__(self, config: ConstantConfig) -> None:
        super().__init__(config)

    def later(self, step: int) -> float:
        """All is left."""
        return 1.0
