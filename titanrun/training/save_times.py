"""When a run is saved between its start and its end: every so many steps, or every so much time, and perhaps after the first step."""

import time
from collections.abc import Callable

from titanrun.config.units import seconds


class SaveTimes:
    """Says after each step whether a checkpoint is due.

    Args:
        interval: steps, or a duration such as "10m" between two saves.
        clock: seconds that only go forward.
        after_first: whether the first step is followed by a save too.
        agreed: what the first rank decided, for all ranks. Their clocks differ, and a save takes all of them.
    """

    def __init__(
        self,
        interval: int | str,
        *,
        clock: Callable[[], float] = time.monotonic,
        after_first: bool = False,
        agreed: Callable[[bool], bool] = lambda due: due,
    ) -> None:
        self.every_steps = interval if isinstance(interval, int) else None
        self.every_seconds = seconds(interval) if isinstance(interval, str) else 0.0
        self.clock = clock
        self.after_first = after_first
        self.agreed = agreed
        self._last = clock()

    def restart(self) -> None:
        """Training begins, or something was saved for whatever reason: the time until the next save begins now."""
        self._last = self.clock()

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after `step`. Every rank asks after the same steps."""
        if step == 1 and self.after_first:
            return True
        if self.every_steps is not None:
            return step % self.every_steps == 0
        return self.agreed(self.clock() - self._last >= self.every_seconds)
