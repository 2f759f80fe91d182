"""Spike detection by median and median absolute deviation.

Unlike with mean and variance, a spike does not raise the limit for the next one.
"""

import logging
import math
from collections import deque
from statistics import median
from typing import Literal

log = logging.getLogger(__name__)

SpikeQuantity = Literal["loss", "grad_norm"]
# with fewer values the normal range is unknown
MIN_WINDOW = 16
# converts the median absolute deviation of normally distributed values to standard deviations
TO_SIGMAS = 1.4826
# a window of equal values has no deviation: smaller deviations count as this share of the median
MIN_RELATIVE_DEVIATION = 0.01
QUANTITY_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}
METRIC_KEYS = {"loss": "guard/loss_spikes", "grad_norm": "guard/grad_norm_spikes"}


class LossSpikeDetector:
    """Detector of spikes in a series of one value per step.

    NaN and infinity do not count as spikes and never enter the window.

    Args:
        sigmas: threshold of a spike in standard deviations above the median. None to disable.
        window: number of recent values to compare with.
        quantity: observed quantity, for messages and the name of the metric.
    """

    def __init__(
        self, sigmas: float | None = None, window: int = 128, *, quantity: SpikeQuantity = "loss"
    ) -> None:
        self.sigmas = sigmas
        self.quantity = quantity
        self._window: deque[float] = deque(maxlen=window)
        self._min_window = min(MIN_WINDOW, window)
        self._spikes = 0

    def observe(self, step: int, value: float) -> None:
        """Record the value of one step, and log a warning if it is a spike."""
        if self.sigmas is None or not math.isfinite(value):
            return
        if len(self._window) >= self._min_window:
            middle = median(self._window)
            deviation = TO_SIGMAS * median(abs(other - middle) for other in self._window)
            sigmas = (value - middle) / max(
                deviation, MIN_RELATIVE_DEVIATION * abs(middle), math.ulp(1.0)
            )
            if sigmas > self.sigmas:
                self._spikes += 1
                log.warning(
                    "%s spike: %.4g at step %d, the median of the last %d is %.4g (%.0f sigma)",
                    QUANTITY_NAMES[self.quantity], value, step, len(self._window), middle, sigmas,
                )  # fmt: skip
        self._window.append(value)

    def pop_metrics(self) -> dict[str, float]:
        """Return the number of spikes since the last call as a metric.

        Empty if there were none.
        """
        spikes, self._spikes = self._spikes, 0
        return {METRIC_KEYS[self.quantity]: spikes} if spikes else {}
