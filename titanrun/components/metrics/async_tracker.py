"""Tracker in a separate thread: if it blocks, it loses metrics, but delays no step."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from titanrun.components.metrics.metric_logger import EndState

# maximum number of waiting lines; at one per second, a back end may be away for a quarter of an
# hour
MAX_QUEUED_LINES = 1000
CLOSE_TIMEOUT_SECONDS = 30.0
END = None


class WrappedTracker(Protocol):
    """Tracker that runs in the thread."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log the metrics of one step."""

    def close(self) -> None:
        """Finish pending work."""


class AsyncTracker:
    """Tracker that passes each line to another tracker in a thread.

    An error of that tracker is raised by the next call here.

    Args:
        tracker: Called in the thread only.
        max_queued_lines: Maximum number of waiting lines. One more raises TimeoutError.
        timeout_seconds: How long `close` waits for pending work.
    """

    def __init__(
        self,
        tracker: WrappedTracker,
        *,
        max_queued_lines: int = MAX_QUEUED_LINES,
        timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    ) -> None:
        self._tracker = tracker
        self._timeout_seconds = timeout_seconds
        self._lines: queue.Queue[Callable[[], None] | None] = queue.Queue(max_queued_lines)
        self._error: Exception | None = None
        # a daemon: a back end that never returns must not keep the process alive
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the metrics of one step."""
        self._queue(partial(self._tracker.log, step, dict(values)))

    def log_histogram(self, step: int, name: str, counts: Sequence[int]) -> None:
        """Queue a histogram if the tracker takes one."""
        if hasattr(self._tracker, "log_histogram"):
            self._queue(partial(self._tracker.log_histogram, step, name, list(counts)))

    def set_end_state(self, state: EndState) -> None:
        """Pass the final state of the run to the tracker if it has `set_end_state`."""
        if hasattr(self._tracker, "set_end_state"):
            self._tracker.set_end_state(state)

    def close(self) -> None:
        """Wait for pending work, and close the tracker."""
        try:
            self._lines.put(END, timeout=self._timeout_seconds)
        except queue.Full:
            raise TimeoutError(f"it is {self._lines.maxsize:,} lines behind") from None
        self._thread.join(self._timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"it did not end within {self._timeout_seconds:.0f} s")
        self._raise_error()

    def _queue(self, call: Callable[[], None]) -> None:
        self._raise_error()
        try:
            self._lines.put_nowait(call)
        except queue.Full:
            raise TimeoutError(f"it is {self._lines.maxsize:,} lines behind") from None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (call := self._lines.get()) is not END:
                call()
            self._tracker.close()
        except Exception as error:  # third-party code; the error is raised by the next call
            self._error = error
            while self._lines.get() is not END:
                pass  # nobody may wait for a queue that is not read any more
