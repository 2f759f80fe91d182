"""One-cycle schedule (https://arxiv.org/abs/1708.07120).

It increases to the peak, then decreases to the end, as torch's OneCycleLR without its momentum.
"""

import math

from titanrun.components.lr_schedulers.config import OneCycleConfig


class OneCycleSchedule:
    """Two phases over T steps: from the start factor to the peak, then to the floor.

    The floor is the rate of the last step. With `first_step` 1 the curve has two more steps, and
    the run starts at its second step: neither end of the curve is the rate of a step.
    """

    def __init__(self, config: OneCycleConfig) -> None:
        assert isinstance(config.total_steps, int), "steps are decided before"
        self.start, self.floor, self.first_step = (
            config.warmup_start_factor,
            config.min_lr_factor,
            config.first_step,
        )
        # torch's phases: the peak is one step before the share, which may be before step 0; the end
        # is at the last step
        steps = config.total_steps + 2 * config.first_step
        self.peak_step = config.warmup_share * steps - 1
        self.end_step = steps - 1
        self.anneal = anneal_linear if config.anneal == "linear" else anneal_cosine

    def factor(self, step: int) -> float:
        """Return the factor of the peak learning rate for optimizer step `step`, from 0.

        After the horizon, it is the floor.
        """
        at = min(step + self.first_step, self.end_step)
        if at < self.peak_step:
            return self.anneal(self.start, 1.0, at / self.peak_step)
        down = self.end_step - self.peak_step
        return self.anneal(1.0, self.floor, (at - self.peak_step) / down) if down > 0 else 1.0


def anneal_cosine(start: float, end: float, share: float) -> float:
    """Interpolate along half a cosine from one value to another."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def anneal_linear(start: float, end: float, share: float) -> float:
    """Interpolate linearly from one value to another."""
    return start + (end - start) * share
