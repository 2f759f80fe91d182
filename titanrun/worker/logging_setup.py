"""Logging of a worker: plain lines on stderr, lines with time and level in its log file."""

import faulthandler
import json
import logging
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from titanrun.components.metrics.spec.metric_format import format_metrics
from titanrun.config.control_characters import escape_lines
from titanrun.config.problems import problem_error
from titanrun.config.redaction import redact
from titanrun.distributed.rank_env import RankInfo

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
STEPS_LOGGER = "titanrun.steps"
# reasons of failures, which a launcher of several ranks reports once for all
FAILURES_LOGGER = "titanrun.failures"


class SecretValues:
    """Values of secrets, which no line may contain. Empty until the run is read."""

    def __init__(self) -> None:
        self.values: frozenset[str] = frozenset()

    def redact(self, text: str) -> str:
        """Return the text with secrets replaced."""
        return redact(text, self.values)


class RedactingFormatter(logging.Formatter):
    """Formatter of messages and exceptions that redacts secrets."""

    def __init__(self, line_format: str, secret_values: SecretValues) -> None:
        super().__init__(line_format)
        self.secret_values = secret_values

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as a line."""
        return escape_lines(self.secret_values.redact(super().format(record)))


class JsonFormatter(RedactingFormatter):
    """Formatter of one JSON object per line, with time, level and logger."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as a line."""
        about = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**about, "message": super().format(record)}, ensure_ascii=False)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Handler that writes to the current sys.stderr.

    A live line on the terminal replaces sys.stderr while it is shown.
    """

    def __init__(
        self,
        secret_values: SecretValues,
        *,
        silenced_loggers: Collection[str],
        as_json: bool = False,
    ) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(
            (JsonFormatter if as_json else RedactingFormatter)("%(message)s", secret_values)
        )
        self.addFilter(lambda record: record.name not in silenced_loggers)

    # an attribute in the base class, which is never set here
    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Current sys.stderr."""
        return sys.stderr


class LogFileHandler(logging.FileHandler):
    """Log file that warns once if it cannot be written.

    The base class would print a traceback for each line.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self._has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, RUF100 (logging's name)
        """Print a warning once instead of raising."""
        if not self._has_warned:
            with suppress(OSError):
                print(
                    f"warning: cannot write {self.baseFilename}, training continues: "
                    f"{sys.exception()}",
                    file=sys.stderr,
                )
        self._has_warned = True

    def close(self) -> None:
        """Close the file, also if the disk is full and the last line cannot be written."""
        with suppress(OSError):
            super().close()


class StepLogTracker:
    """Tracker that writes each logged step as a line of the log file."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the line of one step."""
        logging.getLogger(STEPS_LOGGER).info(
            "step %d  %s", step, "  ".join(reading.text for reading in format_metrics(values))
        )

    def close(self) -> None:
        """Do nothing: no resources are held."""


@contextmanager
def configure_logging(
    log_file: Path, secret_values: SecretValues, rank_info: RankInfo
) -> Iterator[None]:
    """Send titanrun's messages and Python's warnings to log file and stderr in the block.

    Secrets are redacted. Only the first rank writes everything to stderr. Other ranks write only
    the reason of a failure there, and no rank does if a launcher reports it for all. A quiet run
    writes only warnings and errors to stderr.
    """
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        to_file = LogFileHandler(log_file)
    except OSError as error:
        raise problem_error(
            "file",
            f"cannot write {log_file}: {(error.strerror or str(error)).lower()}",
            hint=f"move {error.filename} away, or make it writable",
        ) from error
    to_file.setFormatter(RedactingFormatter(LOG_FORMAT, secret_values))
    # the console has its own format of steps
    silent = {STEPS_LOGGER} if rank_info.failure_file is None else {STEPS_LOGGER, FAILURES_LOGGER}
    to_stderr = StderrHandler(secret_values, silenced_loggers=silent, as_json=rank_info.logs_json)
    if rank_info.is_quiet:
        to_stderr.setLevel(logging.WARNING)
    if not rank_info.is_main_rank:
        to_stderr.addFilter(lambda record: record.name == FAILURES_LOGGER)
    handlers = (to_stderr, to_file)
    loggers = [logging.getLogger("titanrun"), logging.getLogger("py.warnings")]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.setLevel(logging.INFO)
        for handler in handlers:
            logger.addHandler(handler)
    # stack traces on request: by the launcher for a rank that does not end, or by Ctrl-\
    assert to_file.stream is not None, "the file is opened by the constructor"
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
