"""Schedule of checkpoints by steps, by time, and after the first step."""

import time
from collections.abc import Callable

from titanrun.config.units import duration_to_seconds


class CheckpointSchedule:
    """Decision after each step whether a checkpoint is due.

    Args:
        interval: steps, or a duration such as "10m", between two saves.
        clock: monotonic seconds.
        saves_first_step: whether to save after the first step too.
        broadcast: returns the first rank's decision on all ranks, because clocks differ between
            ranks and all ranks take part in a save.
    """

    def __init__(
        self,
        interval: int | str,
        *,
        clock: Callable[[], float] = time.monotonic,
        saves_first_step: bool = False,
        broadcast: Callable[[bool], bool] = lambda due: due,
    ) -> None:
        self.interval_steps = interval if isinstance(interval, int) else None
        self.interval_seconds = duration_to_seconds(interval) if isinstance(interval, str) else 0.0
        self.clock = clock
        self.saves_first_step = saves_first_step
        self.broadcast = broadcast
        self._last = clock()

    def restart(self) -> None:
        """Restart the time until the next save, at the start of training and after every save."""
        self._last = self.clock()

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step`.

        Collective if the interval is a duration: all ranks must call this after the same steps.
        """
        if step == 1 and self.saves_first_step:
            return True
        if self.interval_steps is not None:
            return step % self.interval_steps == 0
        return self.broadcast(self.clock() - self._last >= self.interval_seconds)
