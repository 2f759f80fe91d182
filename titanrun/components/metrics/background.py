"""A tracker on a thread of its own: one that blocks costs its metrics, never a step."""

import queue
import threading
from collections.abc import Mapping
from typing import Protocol

from titanrun.components.metrics.log import EndState

# lines that may wait; at one a second a back end may be away for a quarter of an hour
LONGEST_QUEUE = 1000
PATIENCE_SECONDS = 30.0
END = None


class Wrapped(Protocol):
    """What is kept off the training thread."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class BackgroundTracker:
    """Hands each line to another tracker in a thread. What that raises is raised by the next call here.

    Args:
        tracker: called in the thread only.
        length: how many lines may wait; one more raises TimeoutError.
        patience_seconds: how long `close` waits for what is under way.
    """

    def __init__(
        self,
        tracker: Wrapped,
        *,
        length: int = LONGEST_QUEUE,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._tracker = tracker
        self._patience_seconds = patience_seconds
        self._lines: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(length)
        self._error: Exception | None = None
        # a daemon: a back end that never returns must not keep the process from ending
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the metrics of one step."""
        self._raise_error()
        try:
            self._lines.put_nowait((step, dict(values)))
        except queue.Full:
            raise TimeoutError(f"it is {self._lines.maxsize} lines behind") from None

    def ends_as(self, state: EndState) -> None:
        """Tell the tracker how the run has ended, if it wants to know."""
        if hasattr(self._tracker, "ends_as"):
            self._tracker.ends_as(state)

    def close(self) -> None:
        """Wait for what is under way, and close the tracker."""
        try:
            self._lines.put(END, timeout=self._patience_seconds)
        except queue.Full:
            raise TimeoutError(f"it is {self._lines.maxsize} lines behind") from None
        self._thread.join(self._patience_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"it did not end within {self._patience_seconds:.0f} s")
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while (line := self._lines.get()) is not END:
                self._tracker.log(*line)
            self._tracker.close()
        except Exception as error:  # foreign code, on its way to who warns about it
            self._error = error
            while self._lines.get() is not END:
                pass  # nobody may wait for room in a queue that nobody reads
