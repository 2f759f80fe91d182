"""The warmup-stable-decay schedule (https://arxiv.org/abs/2404.06395) as a plain function of the step."""

import math
from collections.abc import Callable

from titanrun.components.schedules.config import WarmupStableDecayConfig
from titanrun.components.schedules.warmup import Decaying

# decay type -> what is left of the peak after a share p of the decay
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 1 - p,
    "sqrt": lambda p: 1 - math.sqrt(p),
    "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
}


class WarmupStableDecay(Decaying):
    """Warmup over W steps, a plateau, then decay over D steps of a horizon of T.

    The plateau has one virtual step more than the horizon leaves, T + 1 - W - D: so the first step already learns (1 / W) and
    the last one still does (1 / D for linear decay to zero).
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
        self.shape = SHAPES[config.decay_type]

    def later(self, step: int) -> float:
        """What is left of the way from the peak to the floor after the warmup: 1 to 0."""
        if step < self.decay_start or self.decay_steps == 0:
            return 1.0
        return self.shape(min((step + 1 - self.decay_start) / self.decay_steps, 1.0))
