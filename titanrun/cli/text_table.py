"""Text tables."""

from collections.abc import Callable, Collection, Sequence

from titanrun.config.control_characters import escape_line

GAP = 2
Row = Sequence[str]
Paint = Callable[[int, str], str]


def format_text_table(
    rows: Sequence[Row],
    *,
    right_aligned: Collection[int] = (),
    width: int | None = None,
    paint: Paint | None = None,
) -> str:
    """Format rows with two blanks between columns.

    Each column is as wide as its widest cell.

    Args:
        rows: Cells, the same number in each row.
        right_aligned: Columns that are flush right.
        width: Columns of the terminal. Columns of the table that do not fit follow in a further
            table below, in which the first one is repeated.
        paint: Adds colors to the padded text of a cell, given its column.
    """
    rows = [[escape_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    tables = []
    for columns in split_columns(widths, width):
        lines = []
        for row in rows:
            cells = [
                f"{row[at]:>{widths[at]}}" if at in right_aligned else f"{row[at]:<{widths[at]}}"
                for at in columns
            ]
            # only what is followed by another cell needs its padding
            cells[-1] = cells[-1].rstrip()
            if paint is not None:
                cells = [paint(at, cell) for at, cell in zip(columns, cells, strict=True)]
            lines.append((" " * GAP).join(cells).rstrip() + "\n")
        tables.append("".join(lines))
    return "\n".join(tables)


def split_columns(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Split columns into groups that fit `width`, each led by the first column."""
    groups = [[0]] if widths else []
    for at in range(1, len(widths)):
        if width is not None and len(groups[-1]) > 1:
            total = sum(widths[column] + GAP for column in groups[-1]) + widths[at]
            if total > width:
                groups.append([0])
        groups[-1].append(at)
    return groups


def drop_columns(
    rows: Sequence[Row], width: int | None, droppable: Sequence[int]
) -> tuple[list[list[str]], list[str]]:
    """Drop columns until a table fits `width`, empty ones first.

    Return the rows that are left, and the heads of the dropped columns that are not empty.
    """
    kept, dropped = list(range(len(rows[0]))), []
    empty = [at for at in kept if not any(row[at] for row in rows[1:])]
    for at in (*empty, *droppable):
        widths = [max(len(escape_line(row[column])) for row in rows) for column in kept]
        if width is None or sum(widths) + GAP * (len(kept) - 1) <= width:
            break
        if at in kept:
            kept.remove(at)
            dropped += [] if at in empty else [at]
    heads = [rows[0][at] for at in sorted(dropped)]
    return [[row[at] for at in kept] for row in rows], heads
