"""The live display on a terminal: a progress bar, the metrics below it, the course of the loss, the last save and the warnings."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from titanrun.components.metrics.console import PlainLines, Progress, View
from titanrun.components.metrics.curve import Curve
from titanrun.components.metrics.happenings import Happenings
from titanrun.components.metrics.readings import Reading, duration, readings
from titanrun.config.counted import counted

# the clock runs visibly, and drawing costs a training process next to nothing
DRAWS_PER_SECOND = 2
CURVE_WIDTH = 16
GAP = "   "


def open_display(stream: TextIO, *, colors: bool = True) -> View:
    """A live display, or plain lines on a terminal that cannot move its cursor."""
    # rich looks for NO_COLOR itself where it is not told
    console = Console(file=stream, no_color=None if colors else True)
    return (
        PlainLines(stream)
        if console.is_dumb_terminal or not console.is_terminal
        else LiveDisplay(console)
    )


class LiveDisplay:
    """Draws the last state given, twice a second, from a thread of its own."""

    def __init__(self, console: Console) -> None:
        self._progress: Progress | None = None
        self._values: dict[str, float] = {}
        self._curve = Curve(CURVE_WIDTH)
        self._happenings = Happenings()
        # what is printed meanwhile appears above the display; a piped stdout is not our business
        self._live = Live(
            console=console,
            refresh_per_second=DRAWS_PER_SECOND,
            get_renderable=self._picture,
            redirect_stdout=sys.stdout.isatty(),
        )

    def show(self, progress: Progress, values: Mapping[str, float]) -> None:
        """Keep the metrics for the next draw; one that is not measured every time stays as it was."""
        self._progress = progress
        self._values = {**self._values, **values}
        if "loss" in values:
            self._curve.add(values["loss"])
        if not self._live.is_started:
            self._live.start(refresh=True)

    def close(self) -> None:
        """Draw once more and give the terminal back."""
        self._happenings.close()
        if self._live.is_started:
            self._live.stop()

    def _picture(self) -> "Picture | Text":
        return (
            Text()
            if self._progress is None
            else Picture(self._progress, self._values, str(self._curve), happened(self._happenings))
        )


class Picture:
    """What stands on the terminal at one moment."""

    def __init__(
        self,
        progress: Progress,
        values: Mapping[str, float],
        loss_curve: str,
        happened: Sequence[Text] = (),
    ) -> None:
        self.progress = progress
        self.cells = [styled(reading) for reading in readings(values)]
        if "loss" in values:
            # from the first draw as wide as it gets, so that nothing beside it moves
            self.cells[0].append(f" {loss_curve:{CURVE_WIDTH}}", style="cyan")
        self.cells += happened

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._bar()
        yield from rows(self.cells, options.max_width)

    def _bar(self) -> Table:
        progress = self.progress
        done = progress.step >= progress.total_steps
        remaining = (
            "…" if progress.remaining_seconds is None else duration(progress.remaining_seconds)
        )
        clock = Text.assemble(
            (duration(progress.elapsed_seconds), "bold"),
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


def happened(happenings: Happenings) -> list[Text]:
    """The last save with its age, and how many warnings there were; what did not happen is not shown."""
    cells = []
    if happenings.saved_step is not None:
        age = duration(happenings.seconds_since_save)
        cells.append(
            Text.assemble(
                ("saved step ", "dim"), (str(happenings.saved_step), "bold"), (f" {age} ago", "dim")
            )
        )
    if happenings.warnings:
        cells.append(Text(counted(happenings.warnings, "warning"), style="yellow"))
    return cells


def styled(reading: Reading) -> Text:
    """The number stands out, what it is stays back."""
    parts = [(reading.label, "dim"), (reading.number.strip(), "bold"), (reading.unit, "dim")]
    return Text(" ").join(Text(text, style=style) for text, style in parts if text)


def rows(cells: list[Text], width: int) -> Iterator[Text]:
    """The cells side by side, in as many rows as they need."""
    row: list[Text] = []
    for cell in cells:
        if row and sum(other.cell_len + len(GAP) for other in row) + cell.cell_len > width:
            yield Text(GAP).join(row)
            row = []
        row.append(cell)
    if row:
        yield Text(GAP).join(row)
