"""The plot of svg.py as a PNG file, for places that do not accept SVG. Needs Pillow."""

from collections.abc import Sequence
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

from titanrun.cli.plots.axes import Axis, PlotCurve, Scale, build_axes, format_tick
from titanrun.cli.plots.svg import (
    BOTTOM,
    COLORS,
    HEIGHT,
    LEFT,
    RIGHT,
    START_RADIUS,
    TICKS,
    TOP,
    WIDTH,
    Point,
    compute_band_outlines,
    split_at_gaps,
    to_pixel_x,
    to_pixel_y,
)

# pixels of the file per unit of the drawing
SCALE = 2
SIZE, TITLE_SIZE = 13, 15
# opacity out of 255, as in the SVG file
BAND_OPACITY = 51


def plot_png(
    curves: Sequence[PlotCurve],
    *,
    title: str,
    x_label: str,
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
) -> bytes:
    """Return the bytes of a PNG file: grid, ticks, curves, and names of several curves."""
    across, up = build_axes(curves, x_scale, y_scale)
    picture = Image.new("RGBA", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    bands = Image.new("RGBA", picture.size)
    for index, curve in enumerate(curves):
        for outline in compute_band_outlines(curve, across, up):
            ImageDraw.Draw(bands).polygon(
                scale_points(outline), fill=get_curve_color(index) + f"{BAND_OPACITY:02x}"
            )
    picture.alpha_composite(bands)
    draw = ImageDraw.Draw(picture)
    draw_png_grid(draw, across, up)
    draw_png_text(draw, (LEFT, 20), title, anchor="ls", size=TITLE_SIZE)
    draw_png_text(draw, ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8), x_label, anchor="ms")
    for index, curve in enumerate(curves):
        for piece in split_at_gaps(curve, across, up):
            draw.line(
                scale_points(piece),
                fill=get_curve_color(index),
                width=round(1.5 * SCALE),
                joint="curve",
            )
        start = curve.find_start(across, up)
        if start is not None:
            draw.circle(
                scale_points([(to_pixel_x(across, start[0]), to_pixel_y(up, start[1]))])[0],
                START_RADIUS * SCALE,
                fill="white",
                outline=get_curve_color(index),
                width=SCALE,
            )
        if len(curves) > 1:
            draw_png_text(
                draw,
                (WIDTH - RIGHT, TOP + 14 + 16 * index),
                curve.name,
                anchor="rs",
                color=get_curve_color(index),
            )
    file = BytesIO()
    picture.convert("RGB").save(file, "PNG")
    return file.getvalue()


def draw_png_grid(draw: ImageDraw.ImageDraw, across: Axis, up: Axis) -> None:
    """Draw a line and a number at each tick, and the frame."""
    for tick in up.compute_ticks(TICKS):
        y = to_pixel_y(up, tick)
        draw.line(scale_points([(LEFT, y), (WIDTH - RIGHT, y)]), fill="#dddddd", width=SCALE)
        draw_png_text(draw, (LEFT - 8, y + 4), format_tick(tick), anchor="rs")
    for tick in across.compute_ticks(TICKS):
        draw_png_text(
            draw, (to_pixel_x(across, tick), HEIGHT - BOTTOM + 18), format_tick(tick), anchor="ms"
        )
    draw.rectangle(
        scale_points([(LEFT, TOP), (WIDTH - RIGHT, HEIGHT - BOTTOM)]),
        outline="#888888",
        width=SCALE,
    )


def draw_png_text(
    draw: ImageDraw.ImageDraw,
    point: Point,
    text: str,
    *,
    anchor: str,
    size: int = SIZE,
    color: str = "black",
) -> None:
    """Draw text at a point; `anchor` is its alignment in Pillow's letters."""
    draw.text(
        scale_points([point])[0],
        text,
        fill=color,
        anchor=anchor,
        font=ImageFont.load_default(size * SCALE),
    )


def scale_points(points: Sequence[Point]) -> list[Point]:
    """Convert points of the drawing to pixels of the file."""
    return [(x * SCALE, y * SCALE) for x, y in points]


def get_curve_color(index: int) -> str:
    """Return the color of a curve, as in the SVG file."""
    return COLORS[index % len(COLORS)]
