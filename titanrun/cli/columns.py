"""Rows of text in columns."""

from collections.abc import Collection, Sequence


def in_columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Lines with two blanks between columns, each as wide as its widest cell; the columns `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if at in right else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
