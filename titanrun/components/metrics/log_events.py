"""Counts of log events: the last saved step and the number of warnings."""

import logging
import time
from collections.abc import Callable

# attribute of a log record with the step of a save
SAVED_STEP = "saved_step"
LOGGERS = ("titanrun", "py.warnings")


class LogEventCounter(logging.Handler):
    """Handler that counts log records until it is closed.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.num_warnings = 0
        self.saved_step: int | None = None
        self._saved_at = 0.0
        self._clock = clock
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)

    @property
    def seconds_since_save(self) -> float:
        """Seconds since the last save."""
        return self._clock() - self._saved_at

    def emit(self, record: logging.LogRecord) -> None:
        """Count one record."""
        self.num_warnings += record.levelno >= logging.WARNING
        step = getattr(record, SAVED_STEP, None)
        if step is not None:
            self.saved_step, self._saved_at = step, self._clock()

    def close(self) -> None:
        """Stop counting."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        super().close()
