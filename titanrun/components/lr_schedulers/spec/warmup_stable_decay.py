"""Warmup-stable-decay schedule (https://arxiv.org/abs/2404.06395)."""

import math
from collections.abc import Callable

from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.lr_schedulers.spec.warmup import DecaySchedule

# decay type -> remaining fraction after a share p of the decay
DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 1 - p,
    "sqrt": lambda p: 1 - math.sqrt(p),
    "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
}


class WarmupStableDecaySchedule(DecaySchedule):
    """Warmup over W steps, a plateau, then decay over D steps of a horizon of T.

    The plateau has one virtual step more than the horizon leaves, T + 1 - W - D: so the first step
    has a nonzero rate (1 / W), and so has the last one (1 / D for linear decay to zero).
    """

    def __init__(self, config: WarmupStableDecayConfig) -> None:
        super().__init__(config)
        rest = self.horizon - self.warmup_steps
        self.decay_steps = (
            rest
            if config.decay_ratio is None
            else min(round(self.horizon * config.decay_ratio), rest)
        )
        self.decay_start = self.horizon + 1 - self.decay_steps
        self.shape = DECAY_SHAPES[config.decay_type]

    def decay_factor(self, step: int) -> float:
        """Return the remaining fraction of the way from peak to floor after the warmup, 1 to 0."""
        if step < self.decay_start or self.decay_steps == 0:
            return 1.0
        return self.shape(min((step + 1 - self.decay_start) / self.decay_steps, 1.0))
