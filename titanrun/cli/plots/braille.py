"""Curves in a terminal as Braille dots: two columns and four rows of dots per character."""

from collections.abc import Sequence

from titanrun.cli.plots.axes import Axis, PlotCurve, Scale, build_axes, format_tick

# the dots of a Braille character, by row and column
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800
TICKS = 4
MIN_WIDTH = 20
# terminal colors by curve: they repeat, the letters do not
COLOR_CODES = ("36", "33", "32", "35", "34", "31")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# where a curve goes on from another one
START_MARK = "○"


class Canvas:
    """Dots that can be set, in `columns` x `rows` characters."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.signs = [[0] * columns for _ in range(rows)]
        self.sign_curves = [[0] * columns for _ in range(rows)]
        self.letters: dict[tuple[int, int], str] = {}
        self.letter_curves: dict[tuple[int, int], int] = {}
        self.curve_index = 0

    def set_dot(self, x: float, y: float) -> None:
        """Set the dot at a fraction of the width from the left and of the height from below."""
        across, down = round(x * (self.columns * 2 - 1)), round((1 - y) * (self.rows * 4 - 1))
        if 0 <= across < self.columns * 2 and 0 <= down < self.rows * 4:
            self.signs[down // 4][across // 2] |= DOTS[down % 4][across % 2]
            self.sign_curves[down // 4][across // 2] = self.curve_index

    def draw_line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Set the dots between two positions."""
        steps = max(
            abs(end[0] - start[0]) * self.columns * 2, abs(end[1] - start[1]) * self.rows * 4
        )
        count = max(1, round(steps))
        for step in range(count + 1):
            share = step / count
            self.set_dot(
                start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share
            )

    def write_letter(self, x: float, y: float, letter: str) -> None:
        """Write a letter at a fraction of the width and height, or in the next free row."""
        column, row = round(x * (self.columns - 1)), round((1 - y) * (self.rows - 1))
        free = [other for other in range(self.rows) if (other, column) not in self.letters]
        if free and 0 <= column < self.columns:
            row = min(free, key=lambda other: abs(other - row))
            self.letters[row, column] = letter
            self.letter_curves[row, column] = self.curve_index

    def render_rows(self, *, use_color: bool = False) -> list[str]:
        """Render the rows of characters from the top.

        With `use_color` every character has the color of its curve.
        """
        found = []
        for row, signs in enumerate(self.signs):
            texts = [
                self.letters.get((row, column), chr(BLANK + sign))
                for column, sign in enumerate(signs)
            ]
            if use_color:
                owners = [
                    self.letter_curves.get((row, column), owner)
                    for column, owner in enumerate(self.sign_curves[row])
                ]
                texts = [
                    text if text == chr(BLANK) else colorize(text, owner)
                    for text, owner in zip(texts, owners, strict=True)
                ]
            found.append("".join(texts))
        return found


def colorize(text: str, curve_index: int) -> str:
    """Color text like a curve."""
    return f"\x1b[{COLOR_CODES[curve_index % len(COLOR_CODES)]}m{text}\x1b[0m"


def plot_braille(
    curves: Sequence[PlotCurve],
    *,
    width: int,
    height: int = 12,
    x_label: str = "",
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
    use_color: bool = False,
) -> str:
    """Return lines of at most `width` columns: curves, ticks of both axes, and the x label.

    If there are several curves, each ends in its letter of LETTERS, and a marked start is a
    START_MARK. With `use_color` each has a color, for a terminal.
    """
    across, up = build_axes(curves, x_scale, y_scale)
    marks = {
        min(height - 1, round((1 - (up.to_fraction(tick) or 0.0)) * (height - 1))): format_tick(
            tick
        )
        for tick in up.compute_ticks(TICKS)
    }
    margin = max(map(len, marks.values()), default=0)
    canvas = Canvas(max(width - margin - 2, MIN_WIDTH), height)
    for canvas.curve_index, curve in enumerate(curves):
        draw_curve(canvas, curve, across, up)
        start = curve.find_start(across, up)
        if start is not None:
            canvas.write_letter(
                across.to_fraction(start[0]) or 0.0, up.to_fraction(start[1]) or 0.0, START_MARK
            )
        if len(curves) > 1:
            write_curve_letter(canvas, curve, across, up)
    rows = [
        f"{marks.get(row, ''):>{margin}} {'┤' if row in marks else '│'}{signs}"
        for row, signs in enumerate(canvas.render_rows(use_color=use_color))
    ]
    rows.append(f"{'':>{margin}} └{'─' * canvas.columns}")
    rows.append(f"{'':>{margin}}  {format_x_numbers(across, canvas.columns)}")
    rows.append(f"{x_label:>{margin + 2 + canvas.columns}}")
    return "".join(f"{row.rstrip()}\n" for row in rows)


def draw_curve(canvas: Canvas, curve: PlotCurve, across: Axis, up: Axis) -> None:
    """Draw one curve; a point without neighbors is a dot."""
    before = None
    for x, y in zip(curve.x, curve.y, strict=True):
        place = across.to_fraction(x), up.to_fraction(y)
        here = None if place[0] is None or place[1] is None else (place[0], place[1])
        if here is not None:
            canvas.draw_line(before or here, here)
        before = here
    for side in (curve.low, curve.high):
        for x, y in zip(curve.x, side, strict=False):
            place = across.to_fraction(x), up.to_fraction(y)
            if place[0] is not None and place[1] is not None:
                canvas.set_dot(place[0], place[1])


def write_curve_letter(canvas: Canvas, curve: PlotCurve, across: Axis, up: Axis) -> None:
    """Write the letter of a curve at its last point that can be drawn."""
    for x, y in zip(reversed(curve.x), reversed(curve.y), strict=True):
        place = across.to_fraction(x), up.to_fraction(y)
        if place[0] is not None and place[1] is not None:
            canvas.write_letter(place[0], place[1], LETTERS[canvas.curve_index % len(LETTERS)])
            return


def format_x_numbers(across: Axis, columns: int) -> str:
    """Format the ticks below the x axis, each below its position if there is space."""
    signs = [" "] * columns
    for tick in across.compute_ticks(TICKS):
        text = format_tick(tick)
        start = min(round((across.to_fraction(tick) or 0.0) * (columns - 1)), columns - len(text))
        if all(sign == " " for sign in signs[max(0, start - 1) : start + len(text)]):
            signs[start : start + len(text)] = text
    return "".join(signs)
