"""Curves as an SVG file."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from titanrun.cli.plots.axes import Axis, PlotCurve, Scale, build_axes, format_tick

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 40, 48
# distinguishable for color-blind readers, with enough contrast; titanrun ui has the same
COLORS = (
    "#0072b2",
    "#c25400",
    "#00805d",
    "#a8497f",
    "#8a6100",
    "#5b4fc7",
    "#3f4a54",
    "#0a7d8c",
)
DARK_COLORS = (
    "#4aa8e0",
    "#ff9152",
    "#3cc79b",
    "#e595c1",
    "#e6b800",
    "#a79bff",
    "#c3ccd4",
    "#4fd0dd",
)
TEXT_COLOR, DARK_TEXT_COLOR = "#1b1d20", "#e9ebee"
GRID_OPACITY = 0.12
# colors are attributes, which every viewer knows; a dark page replaces them
DARK_STYLE = (
    ":root { color-scheme: light dark; } @media (prefers-color-scheme: dark) { "
    f"svg {{ fill: {DARK_TEXT_COLOR}; color: {DARK_TEXT_COLOR}; }} "
    + " ".join(
        f".s{number} {{ stroke: {color}; }} .b{number} {{ fill: {color}; }}"
        for number, color in enumerate(DARK_COLORS, 1)
    )
    + " }"
)
TICKS = 5
START_RADIUS = 4
Point = tuple[float, float]


def plot_svg(
    curves: Sequence[PlotCurve],
    *,
    title: str,
    x_label: str,
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
) -> str:
    """Return the text of an SVG file: grid, ticks, curves, and names of several curves."""
    across, up = build_axes(curves, x_scale, y_scale)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}" '
        f'font-family="sans-serif" font-size="13" fill="{TEXT_COLOR}" color="{TEXT_COLOR}">',
        f"<style>{DARK_STYLE}</style>",
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
        *build_svg_grid(across, up),
        f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x_label)}</text>",
    ]
    for index, curve in enumerate(curves):
        number = index % len(COLORS)
        color, look = COLORS[number], f'class="s{number + 1}"'
        parts.extend(
            f'<polygon class="b{number + 1}" fill="{color}" fill-opacity="0.2" points="{outline}"/>'
            for outline in format_svg_bands(curve, across, up)
        )
        parts.extend(
            f'<polyline {look} fill="none" stroke="{color}" stroke-width="1.5" points="{line}"/>'
            for line in format_svg_polylines(curve, across, up)
        )
        start = curve.find_start(across, up)
        if start is not None:
            parts.append(
                f'<circle {look} cx="{to_pixel_x(across, start[0])}" '
                f'cy="{to_pixel_y(up, start[1])}" r="{START_RADIUS}" fill="none" stroke="{color}"/>'
            )
        if len(curves) > 1:
            parts.append(
                f'<text class="b{number + 1}" x="{WIDTH - RIGHT}" y="{TOP + 14 + 16 * index}" '
                f'text-anchor="end" fill="{color}">{escape(curve.name)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def build_svg_grid(across: Axis, up: Axis) -> list[str]:
    """Return a line and a number at each tick, and the frame."""
    parts = []
    for tick in up.compute_ticks(TICKS):
        y = to_pixel_y(up, tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" '
            f'stroke="currentColor" stroke-opacity="{GRID_OPACITY}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_tick(tick)}</text>'
        )
    for tick in across.compute_ticks(TICKS):
        x = to_pixel_x(across, tick)
        parts.append(
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{format_tick(tick)}</text>"
        )
    frame = f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
    return [*parts, f'<rect {frame} fill="none" stroke="currentColor" stroke-opacity="0.5"/>']


def format_svg_polylines(curve: PlotCurve, across: Axis, up: Axis) -> list[str]:
    """Format the points of each unbroken piece of a curve for SVG."""
    return [" ".join(f"{x},{y}" for x, y in piece) for piece in split_at_gaps(curve, across, up)]


def split_at_gaps(curve: PlotCurve, across: Axis, up: Axis) -> list[list[Point]]:
    """Return the points of each unbroken piece of a curve, in pixels."""
    found: list[list[Point]] = [[]]
    for x, y in zip(curve.x, curve.y, strict=True):
        if across.to_fraction(x) is None or up.to_fraction(y) is None:
            found.append([])
        else:
            found[-1].append((to_pixel_x(across, x), to_pixel_y(up, y)))
    return [piece for piece in found if piece]


def format_svg_bands(curve: PlotCurve, across: Axis, up: Axis) -> list[str]:
    """Format the outline of each unbroken piece of a curve's band for SVG."""
    return [
        " ".join(f"{x},{y}" for x, y in outline)
        for outline in compute_band_outlines(curve, across, up)
    ]


def compute_band_outlines(curve: PlotCurve, across: Axis, up: Axis) -> list[list[Point]]:
    """Return the outline of each unbroken piece of a curve's band, in pixels.

    It runs along the low side and back along the high side.
    """
    sides: list[list[tuple[Point, Point]]] = [[]]
    for x, low, high in zip(curve.x, curve.low, curve.high, strict=False):
        if (
            across.to_fraction(x) is None
            or up.to_fraction(low) is None
            or up.to_fraction(high) is None
        ):
            sides.append([])
        else:
            at = to_pixel_x(across, x)
            sides[-1].append(((at, to_pixel_y(up, low)), (at, to_pixel_y(up, high))))
    return [
        [low for low, _ in piece] + [high for _, high in reversed(piece)]
        for piece in sides
        if len(piece) > 1
    ]


def to_pixel_x(across: Axis, value: float) -> float:
    """Return pixels from the left."""
    return round(LEFT + (across.to_fraction(value) or 0.0) * (WIDTH - LEFT - RIGHT), 1)


def to_pixel_y(up: Axis, value: float) -> float:
    """Return pixels from the top."""
    return round(HEIGHT - BOTTOM - (up.to_fraction(value) or 0.0) * (HEIGHT - TOP - BOTTOM), 1)
