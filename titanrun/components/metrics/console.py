"""Progress for the person at the console: a live display on a terminal, plain lines elsewhere."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol, TextIO

from titanrun.components.metrics.jsonl import encoded
from titanrun.components.metrics.readings import duration, readings


class Progress:
    """How far the run is, and how long it will still take at the pace it had so far."""

    def __init__(
        self, total_steps: int, first_step: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_steps = total_steps
        self.first_step = first_step
        self.step = first_step
        self.clock = clock
        self._began = clock()
        self._advanced = self._began

    def advance(self, step: int) -> None:
        """`step` steps are done."""
        self.step = step
        self._advanced = self.clock()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of this process's part of the run."""
        return self.clock() - self._began

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds to the end; None before the first step."""
        done = self.step - self.first_step
        if done <= 0:
            return None
        seconds_a_step = (self._advanced - self._began) / done
        return max(
            0.0, seconds_a_step * (self.total_steps - self.step) - (self.clock() - self._advanced)
        )


class View(Protocol):
    """What shows the progress."""

    def show(self, progress: Progress, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class ConsoleLog:
    """Shows logged steps: on a terminal as a display that changes in place, otherwise one line each.

    Args:
        total_steps: where the run ends.
        stream: where to show it; None is stderr.
        first_step: steps that were done before this process began.
        colors: whether a terminal is shown colours, unless NO_COLOR is set.
        as_json: an object a logged step, on a terminal too.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        first_step: int = 0,
        colors: bool = True,
        as_json: bool = False,
    ) -> None:
        self.progress = Progress(total_steps, first_step)
        target = sys.stderr if stream is None else stream
        self._view: View = (
            JsonLines(target)
            if as_json
            else live_display(target, colors=colors)
            if target.isatty()
            else PlainLines(target)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of one step."""
        self.progress.advance(step)
        self._view.show(self.progress, values)

    def close(self) -> None:
        """Leave the last state on the screen and give the terminal back."""
        self._view.close()


class PlainLines:
    """One line a logged step, numbers below each other."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, progress: Progress, values: Mapping[str, float]) -> None:
        """Write one line."""
        width = len(str(progress.total_steps))
        cells = [
            f"step {progress.step:{width}}/{progress.total_steps}",
            *(reading.text for reading in readings(values)),
        ]
        if progress.remaining_seconds is not None and progress.step < progress.total_steps:
            cells.append(f"{duration(progress.remaining_seconds)} left")
        self.stream.write("  ".join(cells) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing is held open."""


class JsonLines:
    """The line of metrics.jsonl for each logged step, with the steps there are and the seconds that are left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, progress: Progress, values: Mapping[str, float]) -> None:
        """Write one line."""
        left = progress.remaining_seconds
        about = {
            "time": time.time(),
            "level": "info",
            "step": progress.step,
            "steps": progress.total_steps,
            "remaining_seconds": left,
        }
        self.stream.write(
            json.dumps({**about, **{name: encoded(value) for name, value in values.items()}}) + "\n"
        )
        self.stream.flush()

    def close(self) -> None:
        """Nothing is held open."""


def live_display(stream: TextIO, *, colors: bool) -> View:
    """The display for terminals, imported only where there is one."""
    display: View = import_module("titanrun.components.metrics.live_display").open_display(
        stream, colors=colors
    )
    return display
