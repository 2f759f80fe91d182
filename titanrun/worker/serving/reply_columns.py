"""Replies of two models side by side in a terminal, while they are generated."""

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from titanrun.config.control_characters import escape_lines

MIN_WIDTH = 100
# between the columns
GAP = 2


class ReplyColumns:
    """One column for each reply, redrawn with each new piece of text.

    Within its block nothing else may be written to the terminal; afterwards the replies stay.

    Args:
        names: names of the models.
        console: the terminal.
    """

    def __init__(self, names: list[str], console: Console) -> None:
        self._names, self._texts = names, ["" for _ in names]
        self._live = Live(self._draw(), console=console, auto_refresh=False)

    def __enter__(self) -> "ReplyColumns":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def add(self, index: int, piece: str) -> None:
        """Add a piece of text to the reply of a model."""
        self._texts[index] += escape_lines(piece)
        self._live.update(self._draw(), refresh=True)

    def _draw(self) -> Table:
        table = Table.grid(expand=True, padding=(0, GAP))
        for _ in self._names:
            table.add_column(ratio=1, overflow="fold")
        table.add_row(
            *(Text(f"{name}> {text}") for name, text in zip(self._names, self._texts, strict=True))
        )
        return table


def has_room_for_columns(console: Console) -> bool:
    """Return whether a terminal is wide enough for two replies, and can be redrawn."""
    return console.is_terminal and not console.is_dumb_terminal and console.width >= MIN_WIDTH
