"""Where a worker's words go: plain lines on stderr, and the same with time and level in its log file."""

import faulthandler
import json
import logging
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from titanrun.components.metrics.readings import readings
from titanrun.config.masking import masked
from titanrun.distributed.environment import Place

LINE = "%(asctime)s %(levelname)s %(message)s"
STEPS = "titanrun.steps"
# why a rank failed; a launcher of several ranks says it once for all
FAILURES = "titanrun.failures"


class Hidden:
    """The values of secrets, which no line shows. Empty until the run is read."""

    def __init__(self) -> None:
        self.values: frozenset[str] = frozenset()

    def masked(self, text: str) -> str:
        """The text without them."""
        return masked(text, self.values)


class Masking(logging.Formatter):
    """Formats a message, or an exception, and masks what is hidden in it."""

    def __init__(self, line: str, hidden: Hidden) -> None:
        super().__init__(line)
        self.hidden = hidden

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        return self.hidden.masked(super().format(record))


class AsJson(Masking):
    """Formats a message as an object a line, with its time, level and logger."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        about = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**about, "message": super().format(record)}, ensure_ascii=False)


class CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to sys.stderr as it is at that moment: a live line on the terminal replaces it while it is shown."""

    def __init__(self, hidden: Hidden, *, silent: Collection[str], as_json: bool = False) -> None:
        logging.Handler.__init__(self)
        self.setFormatter((AsJson if as_json else Masking)("%(message)s", hidden))
        self.addFilter(lambda record: record.name not in silent)

    @property
    def stream(self) -> TextIO:
        return sys.stderr


class LogFile(logging.FileHandler):
    """A log file that warns once when the disk takes no more lines, where logging would print a traceback for each of them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self._has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Called instead of raising."""
        if not self._has_warned:
            with suppress(OSError):
                print(
                    f"warning: {self.baseFilename} takes no more lines, training goes on: {sys.exception()}",
                    file=sys.stderr,
                )
        self._has_warned = True

    def close(self) -> None:
        """Closes the file, also where the rest of a line has no room."""
        with suppress(OSError):
            super().close()


class StepLines:
    """A tracker that puts each logged step into the log file as a line."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the line of one step."""
        logging.getLogger(STEPS).info(
            "step %d  %s", step, "  ".join(reading.text for reading in readings(values))
        )

    def close(self) -> None:
        """Nothing is held open."""


@contextmanager
def talking(log_file: Path, hidden: Hidden, place: Place) -> Iterator[None]:
    """Within the block titanrun's messages and Python's warnings, less what is `hidden`, go to `log_file`, and on the first rank to stderr.

    Other ranks say on stderr only why they failed, and none does where a launcher says it for all. A quiet run says there what is wrong.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    to_file = LogFile(log_file)
    to_file.setFormatter(Masking(LINE, hidden))
    # the console shows the steps in its own way
    silent = {STEPS} if place.failure_file is None else {STEPS, FAILURES}
    to_stderr = CurrentStderr(hidden, silent=silent, as_json=place.logs_json)
    if place.is_quiet:
        to_stderr.setLevel(logging.WARNING)
    if not place.is_first:
        to_stderr.addFilter(lambda record: record.name == FAILURES)
    handlers = (to_stderr, to_file)
    loggers = [logging.getLogger("titanrun"), logging.getLogger("py.warnings")]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.setLevel(logging.INFO)
        for handler in handlers:
            logger.addHandler(handler)
    # the launcher asks a rank that does not end where it stands; Ctrl-\ asks one that seems to hang
    faulthandler.register(signal.SIGQUIT, file=to_file.stream, all_threads=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGQUIT)
        logging.captureWarnings(False)
        for logger in loggers:
            for handler in handlers:
                logger.removeHandler(handler)
        to_file.close()
