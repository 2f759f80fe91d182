"""Distribution of logged steps to the metrics file, the console and all trackers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, Protocol, Self

from titanrun.components.metrics.console_log import ConsoleLog
from titanrun.components.metrics.spec.metrics_file import MetricsFile

log = logging.getLogger(__name__)


EndState = Literal["finished", "preempted", "failed"]


class Tracker(Protocol):
    """Further receiver of metrics, built by the slot `trackers`.

    If it has `set_end_state(state)`, that is called before it is closed, with the final state of
    the run: finished, preempted or failed. If it has `log_histogram(step, name, counts)`, it gets
    the counts of bins, of which bin N is the number N.
    """

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log the metrics of one step."""

    def close(self) -> None:
        """Finish pending work."""


class MetricLogger:
    """Logger that passes each logged step on.

    A tracker that fails is dropped with one warning. The run does not depend on it.

    Args:
        file: metrics.jsonl, written first. None on ranks that do not write it.
        console: None if nothing is shown.
        trackers: Trackers by their name in the recipe.
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
        """Close everything; an error of the block has ended the run."""
        if error is not None and not isinstance(error, GeneratorExit):
            self.set_end_state("failed")
        self.close()

    def set_end_state(self, state: EndState) -> None:
        """Pass the final state of the run to the trackers."""
        for name, tracker in list(self._trackers.items()):
            if hasattr(tracker, "set_end_state"):
                self._call_tracker(name, partial(tracker.set_end_state, state))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on the metrics of one step."""
        if self._file is not None:
            self._file.write(step, values)
        if self._console is not None:
            # the target of a redirection may be full
            with suppress(OSError):
                self._console.log(step, values)
        for name, tracker in list(self._trackers.items()):
            self._call_tracker(name, partial(tracker.log, step, dict(values)))

    def log_histogram(self, step: int, name: str, counts: Sequence[int]) -> None:
        """Pass a histogram to the trackers that take one."""
        for key, tracker in list(self._trackers.items()):
            if hasattr(tracker, "log_histogram"):
                self._call_tracker(key, partial(tracker.log_histogram, step, name, counts))

    def close(self) -> None:
        """Close everything."""
        if self._console is not None:
            self._console.close()
        for name, tracker in list(self._trackers.items()):
            self._call_tracker(name, tracker.close)
        if self._file is not None:
            self._file.close()

    def _call_tracker(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        # a tracker is third-party code: its errors must not end the run
        except Exception as error:
            del self._trackers[name]
            reason = f"{type(error).__name__}: {error}"
            log.warning("tracker %s failed and was disabled, training continues: %s", name, reason)
