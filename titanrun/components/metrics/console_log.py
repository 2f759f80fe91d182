"""Progress on the console: a live display on a terminal, plain lines otherwise."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

from titanrun.components.metrics.held_out_history import HeldOutHistory
from titanrun.components.metrics.spec.metric_format import format_elapsed_time, format_metrics
from titanrun.components.metrics.spec.metrics_file import encode_number
from titanrun.config.lazy_module import LazyModule

if TYPE_CHECKING:
    from titanrun.components.metrics import live_display as terminal_display
else:
    # imported only on a terminal
    terminal_display = LazyModule("titanrun.components.metrics.live_display")


# the estimate of the remaining time follows the last steps
RECENT_STEPS = 20
# validations in the table at the end of a run
FINAL_ROWS = 10
STEP_SECONDS = "time/step_seconds"


class RunProgress:
    """Progress of the run, with an estimate of the remaining time.

    Args:
        total_steps: Last step of the run.
        first_step: Steps completed before this process began.
        clock: Returns the time in seconds.
        steps_per_epoch: Steps of a pass over the data. None if it has no end.
        held_out: Validations before this process began. None for none.
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        *,
        steps_per_epoch: float | None = None,
        held_out: HeldOutHistory | None = None,
    ) -> None:
        self.total_steps, self.first_step, self.step = total_steps, first_step, first_step
        self.clock = clock
        self.steps_per_epoch = steps_per_epoch
        self.held_out = HeldOutHistory() if held_out is None else held_out
        self._began = self._advanced = clock()
        # steps since the line before, with the mean seconds of one
        self._recent: list[tuple[int, float]] = []
        # from the first line on: what comes before it, such as compilation and a first validation,
        # does not come with every step
        self._step_seconds, self._first_line = 0.0, (first_step, self._began)

    def advance(self, step: int, seconds_per_step: float | None = None) -> None:
        """Set the number of completed steps.

        Args:
            step: The last completed one.
            seconds_per_step: Mean time of the steps since the last call, without validations and
                saves between them. None if it is not known.
        """
        if seconds_per_step is not None and step > self.step:
            self._step_seconds += (step - self.step) * seconds_per_step if self._recent else 0.0
            self._recent.append((step - self.step, seconds_per_step))
            while sum(count for count, _ in self._recent[1:]) >= RECENT_STEPS:
                self._recent.pop(0)
        if self.step == self.first_step:
            self._first_line = (step, self.clock())
        self.step = step
        self._advanced = self.clock()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of this process's part of the run."""
        return self.clock() - self._began

    @property
    def remaining_seconds(self) -> float | None:
        """Estimated seconds to the end, None before the first step.

        Steps take as long as the last ones, and validations and saves as long as since the first
        line.
        """
        done = self.step - self.first_step
        if done <= 0:
            return None
        seconds_a_step = (self._advanced - self._began) / done
        if self._recent:
            line_step, line_time = self._first_line
            paused = max(0.0, self._advanced - line_time - self._step_seconds)
            pauses = paused / max(1, self.step - line_step)
            count = sum(steps for steps, _ in self._recent)
            seconds_a_step = sum(steps * each for steps, each in self._recent) / count + pauses
        return max(
            0.0, seconds_a_step * (self.total_steps - self.step) - (self.clock() - self._advanced)
        )

    @property
    def epoch(self) -> float | None:
        """Completed epochs, None for a run that does not see all of its data once."""
        if not self.steps_per_epoch or self.total_steps < self.steps_per_epoch:
            return None
        return self.step / self.steps_per_epoch


class ProgressView(Protocol):
    """View of the progress."""

    def show(self, progress: RunProgress, values: Mapping[str, float]) -> None:
        """Show the metrics of one step."""

    def close(self) -> None:
        """Close the view."""


class ConsoleLog:
    """Console log of steps: a display that is updated in place on a terminal, else lines.

    Args:
        total_steps: Last step of the run.
        stream: Output stream. None is stderr.
        first_step: Steps completed before this process began.
        uses_colors: Whether a terminal shows colors, unless NO_COLOR is set.
        is_json: Whether to write a JSON object per logged step, on a terminal too.
        steps_per_epoch: Steps of a pass over the data. None if it has no end.
        held_out: Validations before this process began.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        first_step: int = 0,
        uses_colors: bool = True,
        is_json: bool = False,
        steps_per_epoch: float | None = None,
        held_out: HeldOutHistory | None = None,
    ) -> None:
        self.progress = RunProgress(
            total_steps, first_step, steps_per_epoch=steps_per_epoch, held_out=held_out
        )
        target = sys.stderr if stream is None else stream
        self._view: ProgressView = (
            JsonLinesView(target)
            if is_json
            else import_live_display(target, uses_colors=uses_colors)
            if target.isatty()
            else PlainTextView(target)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of one step."""
        self.progress.advance(step, values.get(STEP_SECONDS))
        self.progress.held_out.add(step, values)
        self._view.show(self.progress, values)

    def close(self) -> None:
        """Leave the last state on the screen and release the terminal."""
        self._view.close()


class PlainTextView:
    """One line per logged step, with aligned numbers, and a table of validations at the end."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._held_out = HeldOutHistory()

    def show(self, progress: RunProgress, values: Mapping[str, float]) -> None:
        """Write one line."""
        self._held_out = progress.held_out
        width = len(str(progress.total_steps))
        cells = [
            f"step {progress.step:{width}}/{progress.total_steps}",
            *(reading.text for reading in format_metrics(values)),
        ]
        if progress.epoch is not None:
            cells.append(f"epoch {progress.epoch:.2f}")
        if progress.remaining_seconds is not None and progress.step < progress.total_steps:
            cells.append(f"{format_elapsed_time(progress.remaining_seconds)} left")
        self.stream.write("  ".join(cells) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Write the table of validations."""
        self.stream.write("".join(f"{line}\n" for line in self._held_out.format_table(FINAL_ROWS)))
        self.stream.flush()


class JsonLinesView:
    """Line of metrics.jsonl for each logged step, with the total steps and remaining seconds."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, progress: RunProgress, values: Mapping[str, float]) -> None:
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
            json.dumps({**about, **{name: encode_number(value) for name, value in values.items()}})
            + "\n"
        )
        self.stream.flush()

    def close(self) -> None:
        """Do nothing: no resources are open."""


def import_live_display(stream: TextIO, *, uses_colors: bool) -> ProgressView:
    """Open the display for terminals, imported only if needed."""
    return terminal_display.open_live_display(stream, uses_colors=uses_colors)
