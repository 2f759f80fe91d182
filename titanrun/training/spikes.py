"""Finds losses far above those of recent steps, by median and median deviation: a spike does not raise the bar for the next one."""

import logging
import math
from collections import deque
from statistics import median

log = logging.getLogger(__name__)

# fewer losses than that say nothing about what is normal
ENOUGH = 16
# the median deviation of normally distributed numbers, in standard deviations, is one over that
TO_SIGMAS = 1.4826
# a window of equal losses has no deviation; below this share of the loss nothing is a spike
SMALLEST_SHARE = 0.01


class SpikeWatch:
    """Hears the loss of each step. A loss that is no number is no spike, and never enters the window.

    Args:
        sigmas: how far above the median a spike begins; None: nothing is one.
        window: how many losses are looked back on.
    """

    def __init__(self, sigmas: float | None = None, window: int = 128) -> None:
        self.sigmas = sigmas
        self._window: deque[float] = deque(maxlen=window)
        self._enough = min(ENOUGH, window)
        self._spikes = 0

    def hear(self, step: int, loss: float) -> None:
        """Takes one step's loss, and says so where it is a spike."""
        if self.sigmas is None or not math.isfinite(loss):
            return
        if len(self._window) >= self._enough:
            middle = median(self._window)
            deviation = TO_SIGMAS * median(abs(value - middle) for value in self._window)
            sigmas = (loss - middle) / max(deviation, SMALLEST_SHARE * abs(middle), math.ulp(1.0))
            if sigmas > self.sigmas:
                self._spikes += 1
                log.warning(
                    "loss spike: %.4g at step %d, the median of the last %d is %.4g (%.0f sigma)",
                    loss, step, len(self._window), middle, sigmas,
                )  # fmt: skip
        self._window.append(loss)

    def take(self) -> dict[str, float]:
        """The spikes since the last call as a metric; empty where there was none."""
        spikes, self._spikes = self._spikes, 0
        return {"guard/loss_spikes": spikes} if spikes else {}
