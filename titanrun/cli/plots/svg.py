"""Curves as an SVG file, for a page or a slide."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from titanrun.cli.plots.axes import Axis, Curve, Scale, axes_of, label

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 40, 48
# told apart by the colour-blind too (https://jfly.uni-koeln.de/color/)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
TICKS = 5
Point = tuple[float, float]


def plot(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
) -> str:
    """The file's text: grid, numbers, curves, and their names where there are several."""
    across, up = axes_of(curves, x_scale, y_scale)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
        *grid(across, up),
        f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
    ]
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        parts.extend(
            f'<polygon fill="{colour}" fill-opacity="0.2" points="{outline}"/>'
            for outline in band(curve, across, up)
        )
        parts.extend(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{line}"/>'
            for line in lines(curve, across, up)
        )
        if len(curves) > 1:
            parts.append(
                f'<text x="{WIDTH - RIGHT}" y="{TOP + 14 + 16 * index}" text-anchor="end" fill="{colour}">{escape(curve.name)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def grid(across: Axis, up: Axis) -> list[str]:
    """A line and a number at each tick, and the frame."""
    parts = []
    for tick in up.ticks(TICKS):
        y = place_y(up, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label(tick)}</text>')
    for tick in across.ticks(TICKS):
        x = place_x(across, tick)
        parts.append(
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label(tick)}</text>'
        )
    frame = f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
    return [*parts, f'<rect {frame} fill="none" stroke="#888"/>']


def lines(curve: Curve, across: Axis, up: Axis) -> list[str]:
    """The points of each unbroken piece of a curve, as SVG writes them."""
    return [" ".join(f"{x},{y}" for x, y in piece) for piece in pieces(curve, across, up)]


def pieces(curve: Curve, across: Axis, up: Axis) -> list[list[Point]]:
    """The points of each unbroken piece of a curve, in pixels."""
    found: list[list[Point]] = [[]]
    for x, y in zip(curve.x, curve.y, strict=True):
        if across.share(x) is None or up.share(y) is None:
            found.append([])
        else:
            found[-1].append((place_x(across, x), place_y(up, y)))
    return [piece for piece in found if piece]


def band(curve: Curve, across: Axis, up: Axis) -> list[str]:
    """The outline of each unbroken piece of a curve's band, as SVG writes it."""
    return [" ".join(f"{x},{y}" for x, y in outline) for outline in outlines(curve, across, up)]


def outlines(curve: Curve, across: Axis, up: Axis) -> list[list[Point]]:
    """The outline of each unbroken piece of a curve's band, in pixels: along its low side, and back along its high one."""
    sides: list[list[tuple[Point, Point]]] = [[]]
    for x, low, high in zip(curve.x, curve.low, curve.high, strict=False):
        if across.share(x) is None or up.share(low) is None or up.share(high) is None:
            sides.append([])
        else:
            at = place_x(across, x)
            sides[-1].append(((at, place_y(up, low)), (at, place_y(up, high))))
    return [
        [low for low, _ in piece] + [high for _, high in reversed(piece)]
        for piece in sides
        if len(piece) > 1
    ]


def place_x(across: Axis, value: float) -> float:
    """Pixels from the left."""
    return round(LEFT + (across.share(value) or 0.0) * (WIDTH - LEFT - RIGHT), 1)


def place_y(up: Axis, value: float) -> float:
    """Pixels from the top."""
    return round(HEIGHT - BOTTOM - (up.share(value) or 0.0) * (HEIGHT - TOP - BOTTOM), 1)
