"""The warmup-stable-decay schedule (https://arxiv.org/abs/2404.06395) as a plain function of the step."""

import math
from collections.abc import Callable

from titanrun.components.schedules.config import WarmupStableDecayConfig

# decay type -> what is left of the peak after a share p of the decay
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 1 - p,
    "sqrt": lambda p: 1 - math.sqrt(p),
    "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
}


class WarmupStableDecay:
    """Warmup over W steps, a plateau, then decay over D steps of a horizon of T.

    The plateau has one virtual step more than the horizon leaves, T + 1 - W - D: so the first step already learns (1 / W) and
    the last one still does (1 / D for linear decay to zero).
    """

    def __init__(self, config: WarmupStableDecayConfig) -> None:
        assert isinstance(config.total_steps, int) and isinstance(config.warmup_steps, int), "steps are decided before"
        horizon = config.total_steps
        self.warmup_steps = min(config.warmup_steps, horizon)
        rest = horizon - self.warmup_steps
        self.decay_steps = rest if config.decay_ratio is None else min(round(horizon * config.decay_ratio), rest)
        self.decay_start = horizon + 1 - self.decay_steps
        self.shape = SHAPES[config.decay_type]
        self.min_factor = config.min_lr_factor

    def factor(self, step: int) -> float:
        """Share of the peak learning rate that optimizer step `step` uses, counted from 0; the floor past the horizon."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step < self.decay_start or self.decay_steps == 0:
            return 1.0
        progress = min((step + 1 - self.decay_start) / self.decay_steps, 1.0)
        return self.min_factor + (1 - self.min_factor) * self.shape(progress)
