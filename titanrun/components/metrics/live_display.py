"""Live display on a terminal.

It shows a progress bar, the metrics, a sparkline of the loss, the last save, the warnings, and a
table of the last validations.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from titanrun.components.metrics.console_log import PlainTextView, ProgressView, RunProgress
from titanrun.components.metrics.held_out_history import HEADER
from titanrun.components.metrics.log_events import LogEventCounter
from titanrun.components.metrics.sparkline import Sparkline
from titanrun.components.metrics.spec.metric_format import (
    FormattedMetric,
    format_elapsed_time,
    format_metrics,
)
from titanrun.config.pluralize import pluralize

# the clock updates visibly, and drawing costs a training process next to nothing
DRAWS_PER_SECOND = 2
CURVE_WIDTH = 16
# short enough that the display fits into a small terminal
MAX_HELD_OUT_ROWS = 6
GAP = "   "


def open_live_display(stream: TextIO, *, uses_colors: bool = True) -> ProgressView:
    """Open a live display, or plain lines on a terminal that cannot move its cursor."""
    # with None, rich itself checks NO_COLOR
    console = Console(file=stream, no_color=None if uses_colors else True)
    return (
        PlainTextView(stream)
        if console.is_dumb_terminal or not console.is_terminal
        else LiveDisplay(console)
    )


class LiveDisplay:
    """Display of the last given state, drawn twice a second from a separate thread."""

    def __init__(self, console: Console) -> None:
        self._progress: RunProgress | None = None
        self._values: dict[str, float] = {}
        self._loss_sparkline = Sparkline(CURVE_WIDTH)
        self._log_events = LogEventCounter()
        # output printed meanwhile appears above the display; a piped stdout stays untouched
        self._live = Live(
            console=console,
            refresh_per_second=DRAWS_PER_SECOND,
            get_renderable=self._render_frame,
            redirect_stdout=sys.stdout.isatty(),
        )

    def show(self, progress: RunProgress, values: Mapping[str, float]) -> None:
        """Store the metrics for the next draw; metrics not in `values` stay as they were."""
        self._progress = progress
        self._values = {**self._values, **values}
        if "loss" in values:
            self._loss_sparkline.add(values["loss"])
        if not self._live.is_started:
            self._live.start(refresh=True)

    def close(self) -> None:
        """Draw once more and release the terminal."""
        self._log_events.close()
        if self._live.is_started:
            self._live.stop()

    def _render_frame(self) -> "DisplayFrame | Text":
        return (
            Text()
            if self._progress is None
            else DisplayFrame(
                self._progress,
                self._values,
                str(self._loss_sparkline),
                format_log_events(self._log_events),
            )
        )


class DisplayFrame:
    """Content of the terminal at one moment."""

    def __init__(
        self,
        progress: RunProgress,
        values: Mapping[str, float],
        loss_curve: str,
        events: Sequence[Text] = (),
    ) -> None:
        self.progress = progress
        self.cells = [style_metric(reading) for reading in format_metrics(values)]
        if "loss" in values:
            # full width from the first draw, so that nothing next to it moves
            self.cells[0].append(f" {loss_curve:{CURVE_WIDTH}}", style="cyan")
        if progress.epoch is not None:
            self.cells.append(Text.assemble(("epoch ", "dim"), (f"{progress.epoch:.2f}", "bold")))
        self.cells += events

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._build_progress_bar()
        yield from wrap_cells(self.cells, options.max_width)
        for line in self.progress.held_out.format_table(MAX_HELD_OUT_ROWS):
            yield Text(line, style="dim" if line == HEADER else "", overflow="crop", no_wrap=True)

    def _build_progress_bar(self) -> Table:
        progress = self.progress
        done = progress.step >= progress.total_steps
        remaining = (
            "…"
            if progress.remaining_seconds is None
            else format_elapsed_time(progress.remaining_seconds)
        )
        clock = Text.assemble(
            (format_elapsed_time(progress.elapsed_seconds), "bold"),
            (" elapsed" if done else " elapsed, ", "dim"),
        )
        if not done:
            clock.append(remaining, style="bold").append(" left", style="dim")
        bar = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None):
            bar.add_column(ratio=ratio, no_wrap=True)
        bar.add_row(
            Text.assemble(
                ("step ", "dim"), (f"{progress.step}", "bold"), (f"/{progress.total_steps}", "dim")
            ),
            ProgressBar(
                total=progress.total_steps,
                completed=progress.step,
                complete_style="cyan",
                finished_style="green",
            ),
            clock,
        )
        return bar


def format_log_events(log_events: LogEventCounter) -> list[Text]:
    """Return the last save with its age, and the number of warnings, if there are any."""
    cells = []
    if log_events.saved_step is not None:
        age = format_elapsed_time(log_events.seconds_since_save)
        cells.append(
            Text.assemble(
                ("saved step ", "dim"), (str(log_events.saved_step), "bold"), (f" {age} ago", "dim")
            )
        )
    if log_events.num_warnings:
        cells.append(Text(pluralize(log_events.num_warnings, "warning"), style="yellow"))
    return cells


def style_metric(reading: FormattedMetric) -> Text:
    """Style a metric with its number in bold and the rest dimmed."""
    parts = [(reading.label, "dim"), (reading.number.strip(), "bold"), (reading.unit, "dim")]
    return Text(" ").join(Text(text, style=style) for text, style in parts if text)


def wrap_cells(cells: list[Text], width: int) -> Iterator[Text]:
    """Yield the cells side by side, in as many rows as they need."""
    row: list[Text] = []
    for cell in cells:
        if row and sum(other.cell_len + len(GAP) for other in row) + cell.cell_len > width:
            yield Text(GAP).join(row)
            row = []
        row.append(cell)
    if row:
        yield Text(GAP).join(row)
