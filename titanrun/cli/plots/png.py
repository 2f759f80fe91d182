"""The picture of svg.py as a PNG file, for where SVG cannot go. Needs Pillow."""

from collections.abc import Sequence
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

from titanrun.cli.plots.axes import Axis, Curve, Scale, axes_of, label
from titanrun.cli.plots.svg import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TICKS,
    TOP,
    WIDTH,
    Point,
    outlines,
    pieces,
    place_x,
    place_y,
)

# pixels of the file for one of the drawing
SCALE = 2
SIZE, TITLE_SIZE = 13, 15
# of 255, as in the SVG file
BAND_OPACITY = 51


def plot(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
) -> bytes:
    """The file's bytes: grid, numbers, curves, and their names where there are several."""
    across, up = axes_of(curves, x_scale, y_scale)
    picture = Image.new("RGBA", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    bands = Image.new("RGBA", picture.size)
    for index, curve in enumerate(curves):
        for outline in outlines(curve, across, up):
            ImageDraw.Draw(bands).polygon(
                scaled(outline), fill=colour_of(index) + f"{BAND_OPACITY:02x}"
            )
    picture.alpha_composite(bands)
    draw = ImageDraw.Draw(picture)
    grid(draw, across, up)
    write(draw, (LEFT, 20), title, anchor="ls", size=TITLE_SIZE)
    write(draw, ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8), x_label, anchor="ms")
    for index, curve in enumerate(curves):
        for piece in pieces(curve, across, up):
            draw.line(scaled(piece), fill=colour_of(index), width=round(1.5 * SCALE), joint="curve")
        if len(curves) > 1:
            write(
                draw,
                (WIDTH - RIGHT, TOP + 14 + 16 * index),
                curve.name,
                anchor="rs",
                colour=colour_of(index),
            )
    file = BytesIO()
    picture.convert("RGB").save(file, "PNG")
    return file.getvalue()


def grid(draw: ImageDraw.ImageDraw, across: Axis, up: Axis) -> None:
    """A line and a number at each tick, and the frame."""
    for tick in up.ticks(TICKS):
        y = place_y(up, tick)
        draw.line(scaled([(LEFT, y), (WIDTH - RIGHT, y)]), fill="#dddddd", width=SCALE)
        write(draw, (LEFT - 8, y + 4), label(tick), anchor="rs")
    for tick in across.ticks(TICKS):
        write(draw, (place_x(across, tick), HEIGHT - BOTTOM + 18), label(tick), anchor="ms")
    draw.rectangle(
        scaled([(LEFT, TOP), (WIDTH - RIGHT, HEIGHT - BOTTOM)]), outline="#888888", width=SCALE
    )


def write(
    draw: ImageDraw.ImageDraw,
    at: Point,
    text: str,
    *,
    anchor: str,
    size: int = SIZE,
    colour: str = "black",
) -> None:
    """Text at a place of the drawing; `anchor` says which of its ends is there, in Pillow's letters."""
    draw.text(
        scaled([at])[0], text, fill=colour, anchor=anchor, font=ImageFont.load_default(size * SCALE)
    )


def scaled(points: Sequence[Point]) -> list[Point]:
    """Places of the drawing in pixels of the file."""
    return [(x * SCALE, y * SCALE) for x, y in points]


def colour_of(index: int) -> str:
    """The colour of a curve, as in the SVG file."""
    return COLOURS[index % len(COLOURS)]
