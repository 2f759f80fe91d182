"""One cycle: up to the peak, then down to the end (https://arxiv.org/abs/1708.07120), as torch's OneCycleLR without its momentum."""

import math

from titanrun.components.schedules.config import OneCycleConfig


class OneCycle:
    """Two arcs over T steps: from the start factor to the peak, and on to the floor, which is the last step's.

    With `first_step` 1 the curve has one step more and the run begins at its second: neither end of the curve is a step's rate.
    """

    def __init__(self, config: OneCycleConfig) -> None:
        assert isinstance(config.total_steps, int), "steps are decided before"
        self.start, self.floor, self.first_step = (
            config.warmup_start_factor,
            config.min_lr_factor,
            config.first_step,
        )
        # torch's phases: the peak lies one step before the share, the end on the last step
        steps = config.total_steps + 2 * config.first_step
        self.peak_at = max(config.warmup_share * steps - 1, 0.0)
        self.end_at = steps - 1
        self.anneal = along_a_line if config.anneal == "linear" else along_a_cosine

    def factor(self, step: int) -> float:
        """Share of the peak learning rate that optimizer step `step` uses, counted from 0; the floor past the horizon."""
        at = min(step + self.first_step, self.end_at)
        if at < self.peak_at:
            return self.anneal(self.start, 1.0, at / self.peak_at)
        down = self.end_at - self.peak_at
        return self.anneal(1.0, self.floor, (at - self.peak_at) / down) if down > 0 else 1.0


def along_a_cosine(start: float, end: float, share: float) -> float:
    """Half a cosine from one value to another."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def along_a_line(start: float, end: float, share: float) -> float:
    """A line from one value to another."""
    return start + (end - start) * share
