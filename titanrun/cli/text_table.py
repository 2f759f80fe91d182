"""Text tables."""

from collections.abc import Collection, Sequence

from titanrun.config.control_characters import escape_line


def format_text_table(rows: Sequence[Sequence[str]], *, right_aligned: Collection[int] = ()) -> str:
    """Format rows with two blanks between columns.

    Each column is as wide as its widest cell. Columns in `right_aligned` are flush right.
    """
    rows = [[escape_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if at in right_aligned else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
