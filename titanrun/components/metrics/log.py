"""The one place that a logged step goes to: the metrics file, the console, and every tracker."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, Protocol, Self

from titanrun.components.metrics.console import ConsoleLog
from titanrun.components.metrics.jsonl import MetricsFile

log = logging.getLogger(__name__)


EndState = Literal["finished", "preempted", "failed"]


class Tracker(Protocol):
    """A further receiver of metrics: what the slot `trackers` builds. One that has `ends_as(state)` is told, before it is closed, how the
    run ended: finished, preempted or failed."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Take the metrics of one step."""

    def close(self) -> None:
        """Finish what is still under way."""


class MetricLog:
    """Passes each logged step on. A tracker that fails is dropped with one warning; the run does not depend on it.

    Args:
        file: metrics.jsonl, written first; None on ranks that leave that to another.
        console: None where nothing is shown.
        trackers: receivers by the name they have in the recipe.
    """

    def __init__(
        self,
        file: MetricsFile | None = None,
        console: ConsoleLog | None = None,
        trackers: Mapping[str, Tracker] | None = None,
    ) -> None:
        self._file = file
        self._console = console
        self._trackers = dict(trackers or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything; what was raised within the block has ended the run."""
        if error is not None and not isinstance(error, GeneratorExit):
            self.ends_as("failed")
        self.close()

    def ends_as(self, state: EndState) -> None:
        """Tell the trackers how the run has ended, for when they are closed."""
        for name, tracker in list(self._trackers.items()):
            if hasattr(tracker, "ends_as"):
                self._guarded(name, partial(tracker.ends_as, state))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on the metrics of one step."""
        if self._file is not None:
            self._file.write(step, values)
        if self._console is not None:
            # what it is redirected to may be full
            with suppress(OSError):
                self._console.log(step, values)
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(tracker.log, step, dict(values)))

    def close(self) -> None:
        """Close everything."""
        if self._console is not None:
            self._console.close()
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, tracker.close)
        if self._file is not None:
            self._file.close()

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        # a tracker is foreign code: whatever it raises must not end the run
        except Exception as error:
            del self._trackers[name]
            reason = f"{type(error).__name__}: {error}"
            log.warning(
                "tracker %s failed and gets no more metrics, training goes on: %s", name, reason
            )
