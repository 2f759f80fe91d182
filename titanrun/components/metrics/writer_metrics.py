"""Metric logger of a process that may become the one that writes, or cease to be it."""

import fcntl
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from titanrun.components.metrics.metric_logger import EndState, MetricLogger
from titanrun.components.metrics.spec.metrics_file import MetricsFile, read_metrics


class WriterMetrics(MetricLogger):
    """Logger of all outputs while this process writes, of its log file otherwise.

    No step is written twice, whichever process wrote it, and none is left out because the process
    that should have written it died.

    Args:
        always: logger of the process's own outputs.
        build: builds the logger of the outputs of the run, at the first step that it writes.
        is_writer: returns whether this process writes.
        path: metrics.jsonl.
    """

    def __init__(
        self,
        always: MetricLogger,
        build: Callable[[], MetricLogger],
        *,
        is_writer: Callable[[], bool],
        path: Path,
    ) -> None:
        super().__init__()
        self._always, self._build, self._is_writer, self._path = always, build, is_writer, path
        self._written: MetricLogger | None = None
        self._was_writer = False
        self._last_step = 0
        self._unconfirmed: tuple[int, Mapping[str, float]] | None = None

    def set_end_state(self, state: EndState) -> None:
        """Pass on the final state of the run, if this process writes."""
        if self._written is not None and self._is_writer():
            self._written.set_end_state(state)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        self._always.log(step, values)
        was, self._was_writer = self._was_writer, self._is_writer()
        if not self._was_writer:
            self._unconfirmed = (step, dict(values))
            return
        if not was:
            # opened anew: another process has written since
            if self._written is not None:
                self._written.close()
            self._last_step, self._written = self._read_last_step(), self._build()
        assert self._written is not None
        if step > self._last_step:
            self._written.log(step, values)

    def log_histogram(self, step: int, name: str, counts: Sequence[int]) -> None:
        """Pass on a histogram, if this process writes. That of its first step is left out."""
        if self._written is not None and self._is_writer() and step > self._last_step:
            self._written.log_histogram(step, name, counts)

    def write_missed_line(self) -> None:
        """Write the last line if the process that should have written it did not.

        Call this when that process has started its next step, or has died.
        """
        if self._unconfirmed is None:
            return
        (step, values), self._unconfirmed = self._unconfirmed, None
        with self._path.open("ab") as lock:
            # others may miss it too
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._read_last_step() < step:
                with closing(MetricsFile(self._path)) as file:
                    file.write(step, values)

    def close(self) -> None:
        """Close everything."""
        for logger in (self._always, self._written):
            if logger is not None:
                logger.close()

    def _read_last_step(self) -> int:
        """Return the last step in the file, 0 if there is none."""
        if not self._path.is_file():
            return 0
        return max((line["step"] for line in read_metrics(self._path)), default=0)
