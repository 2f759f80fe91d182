"""What happened beside the steps: which step was saved last, and how many warnings there were. Told by the records of the log."""

import logging
import time
from collections.abc import Callable

# the attribute by which the record of a save names its step
SAVED_STEP = "saved_step"
LOGGERS = ("titanrun", "py.warnings")


class Happenings(logging.Handler):
    """Counts, from the moment it listens until it is closed.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.warnings = 0
        self.saved_step: int | None = None
        self._saved_at = 0.0
        self._clock = clock
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)

    @property
    def seconds_since_save(self) -> float:
        """How long ago the last save was."""
        return self._clock() - self._saved_at

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of one record."""
        self.warnings += record.levelno >= logging.WARNING
        step = getattr(record, SAVED_STEP, None)
        if step is not None:
            self.saved_step, self._saved_at = step, self._clock()

    def close(self) -> None:
        """Listen no more."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        super().close()
