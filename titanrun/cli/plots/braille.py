"""Curves in a terminal, in Braille dots: two columns and four rows of dots a sign."""

from collections.abc import Sequence

from titanrun.cli.plots.axes import Axis, Curve, Scale, axes_of, label

# the dots of a Braille sign, by row and column
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800
TICKS = 4
NARROWEST = 20
# of a terminal, for one curve after the other: they repeat, the letters do not
COLOURS = ("36", "33", "32", "35", "34", "31")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Canvas:
    """Dots that can be set, `columns` x `rows` signs."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.signs = [[0] * columns for _ in range(rows)]
        self.owners = [[0] * columns for _ in range(rows)]
        self.letters: dict[tuple[int, int], str] = {}
        self.letter_owners: dict[tuple[int, int], int] = {}
        self.owner = 0

    def dot(self, x: float, y: float) -> None:
        """Set the dot at a share of the width from the left, and of the height from below."""
        across, down = round(x * (self.columns * 2 - 1)), round((1 - y) * (self.rows * 4 - 1))
        if 0 <= across < self.columns * 2 and 0 <= down < self.rows * 4:
            self.signs[down // 4][across // 2] |= DOTS[down % 4][across % 2]
            self.owners[down // 4][across // 2] = self.owner

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Set the dots between two places."""
        steps = max(
            abs(end[0] - start[0]) * self.columns * 2, abs(end[1] - start[1]) * self.rows * 4
        )
        count = max(1, round(steps))
        for step in range(count + 1):
            share = step / count
            self.dot(start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)

    def write(self, x: float, y: float, letter: str) -> None:
        """A letter at a share of the width and height, or in the next free row."""
        column, row = round(x * (self.columns - 1)), round((1 - y) * (self.rows - 1))
        free = [other for other in range(self.rows) if (other, column) not in self.letters]
        if free and 0 <= column < self.columns:
            row = min(free, key=lambda other: abs(other - row))
            self.letters[row, column] = letter
            self.letter_owners[row, column] = self.owner

    def lines(self, *, colour: bool = False) -> list[str]:
        """The rows of signs, from the top; with `colour` every sign in that of its owner."""
        found = []
        for row, signs in enumerate(self.signs):
            texts = [
                self.letters.get((row, column), chr(BLANK + sign))
                for column, sign in enumerate(signs)
            ]
            if colour:
                owners = [
                    self.letter_owners.get((row, column), owner)
                    for column, owner in enumerate(self.owners[row])
                ]
                texts = [
                    text if text == chr(BLANK) else painted(text, owner)
                    for text, owner in zip(texts, owners, strict=True)
                ]
            found.append("".join(texts))
        return found


def painted(text: str, owner: int) -> str:
    """Text in the colour of a curve."""
    return f"\x1b[{COLOURS[owner % len(COLOURS)]}m{text}\x1b[0m"


def plot(
    curves: Sequence[Curve],
    *,
    width: int,
    height: int = 12,
    x_label: str = "",
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
    colour: bool = False,
) -> str:
    """Lines of text, at most `width` columns: the curves, numbers beside both axes, and what x is.

    Where there are several curves each ends in its letter of LETTERS. With `colour` each has one, for a terminal.
    """
    across, up = axes_of(curves, x_scale, y_scale)
    marks = {
        min(height - 1, round((1 - (up.share(tick) or 0.0)) * (height - 1))): label(tick)
        for tick in up.ticks(TICKS)
    }
    margin = max(map(len, marks.values()), default=0)
    canvas = Canvas(max(width - margin - 2, NARROWEST), height)
    for canvas.owner, curve in enumerate(curves):
        draw(canvas, curve, across, up)
        if len(curves) > 1:
            name(canvas, curve, across, up)
    rows = [
        f"{marks.get(row, ''):>{margin}} {'┤' if row in marks else '│'}{signs}"
        for row, signs in enumerate(canvas.lines(colour=colour))
    ]
    rows.append(f"{'':>{margin}} └{'─' * canvas.columns}")
    rows.append(f"{'':>{margin}}  {numbers(across, canvas.columns)}")
    rows.append(f"{x_label:>{margin + 2 + canvas.columns}}")
    return "".join(f"{row.rstrip()}\n" for row in rows)


def draw(canvas: Canvas, curve: Curve, across: Axis, up: Axis) -> None:
    """One curve; a point without neighbours is a dot."""
    before = None
    for x, y in zip(curve.x, curve.y, strict=True):
        place = across.share(x), up.share(y)
        here = None if place[0] is None or place[1] is None else (place[0], place[1])
        if here is not None:
            canvas.line(before or here, here)
        before = here
    for side in (curve.low, curve.high):
        for x, y in zip(curve.x, side, strict=False):
            place = across.share(x), up.share(y)
            if place[0] is not None and place[1] is not None:
                canvas.dot(place[0], place[1])


def name(canvas: Canvas, curve: Curve, across: Axis, up: Axis) -> None:
    """The letter of a curve at its last point that can be drawn."""
    for x, y in zip(reversed(curve.x), reversed(curve.y), strict=True):
        place = across.share(x), up.share(y)
        if place[0] is not None and place[1] is not None:
            canvas.write(place[0], place[1], LETTERS[canvas.owner % len(LETTERS)])
            return


def numbers(across: Axis, columns: int) -> str:
    """The numbers below the x axis, each under its place as far as there is room."""
    signs = [" "] * columns
    for tick in across.ticks(TICKS):
        text = label(tick)
        start = min(round((across.share(tick) or 0.0) * (columns - 1)), columns - len(text))
        if all(sign == " " for sign in signs[max(0, start - 1) : start + len(text)]):
            signs[start : start + len(text)] = text
    return "".join(signs)
