"""Charts of the report as SVG, drawn with the colors of the page and legible without a script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from titanrun.cli.plots.axes import Axis, build_axis
from titanrun.report.figures import (
    format_figure,
    format_metric,
    format_metric_title,
    format_ticks,
)
from titanrun.report.html_page import escape_name
from titanrun.runs.metric_series import MetricSeries, downsample_series, smooth_values

# about the size at which the page shows it, so that text keeps its size
WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 26
MAX_POINTS = 400
MAX_TABLE_ROWS = 40
# numbers on an axis, and the steps between them in powers of ten
MIN_TICKS, MAX_TICKS = 4, 6
STEPS = (1, 2, 2.5, 5)
MARGIN = 0.06
NUM_COLORS = 8
# from so many points on, a smoothed curve is drawn over the pale original
MIN_SMOOTHED_POINTS = 100
SMOOTHING_WEIGHT = 0.9
MARK_HEIGHT = 7
CROSS_SIZE = 3.5


@dataclass(frozen=True, slots=True)
class ChartCurve:
    """A metric of a run.

    Args:
        name: Name in the legend.
        metric: Name of the metric, which decides how its values are written.
        series: All points, of which some may not be finite.
        number: Number of the run or curve, which decides its color and, from the ninth on, dashes.
        is_dashed: Whether it is drawn with dashes, beside another curve of the same color.
    """

    name: str
    metric: str
    series: MetricSeries
    number: int = 0
    is_dashed: bool = False

    @property
    def finite(self) -> MetricSeries:
        """Points that can be drawn."""
        pairs = [
            (x, y) for x, y in zip(self.series.x, self.series.y, strict=True) if math.isfinite(y)
        ]
        return MetricSeries([x for x, _ in pairs], [y for _, y in pairs])

    @property
    def has_dashes(self) -> bool:
        """Whether dashes set it apart from a curve of the same color."""
        return self.is_dashed or self.number >= NUM_COLORS

    @property
    def look(self) -> str:
        """Attributes that give a stroke its color and dashes."""
        dashes = ' stroke-dasharray="6 3"' if self.has_dashes else ""
        return f'class="s{self.number % NUM_COLORS + 1}"{dashes}'


def build_chart(
    title: str,
    curves: Sequence[ChartCurve],
    *,
    unit: str = "",
    x_label: str = "step",
    marks: Sequence[float] = (),
) -> str:
    """Build a figure: heading, drawing, legend and a table of values.

    Marks are ticks on the x axis where a run was saved or started again.
    """
    smoothed = any(len(curve.finite.x) >= MIN_SMOOTHED_POINTS for curve in curves)
    notes = [text for text in (unit, "smoothed" if smoothed else "") if text]
    heading = escape(title)
    if notes:
        heading += f' <span class="soft">{escape(", ".join(notes))}</span>'
    if len(curves) == 1:
        heading += f' <span class="last">{format_last(curves[0], unit)}</span>'
    legend = build_legend(curves, unit) if len(curves) > 1 else ""
    return (
        f'<figure class="chart">\n<figcaption>{heading}</figcaption>\n'
        f"{draw_svg(title, curves, x_label, marks)}\n{legend}\n"
        f"{build_value_table(title, curves, x_label)}\n</figure>"
    )


def draw_svg(title: str, curves: Sequence[ChartCurve], x_label: str, marks: Sequence[float]) -> str:
    """Draw axes, marks and curves."""
    drawn = [(curve, curve.finite) for curve in curves]
    across = build_axis([x for curve in curves for x in curve.series.x])
    up = build_height_axis([y for _, series in drawn for y in series.y])
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)} by {escape(x_label)}</title>",
        f"<desc>{escape('; '.join(map(describe_curve, curves)))}</desc>",
        *draw_grid(across, up, x_label),
        *(draw_mark(across, x) for x in marks if across.low <= x <= across.high),
    ]
    for curve, series in drawn:
        parts.extend(draw_chart_curve(curve, series, across, up))
        parts.extend(
            draw_cross(curve, across, x)
            for x, y in zip(curve.series.x, curve.series.y, strict=True)
            if not math.isfinite(y)
        )
    return "\n".join([*parts, "</svg>"])


def build_height_axis(values: Sequence[float]) -> Axis:
    """Build the y axis with a margin above and below the curves."""
    axis = build_axis(values)
    margin = (axis.high - axis.low) * MARGIN
    return Axis(axis.low - margin, axis.high + margin)


def draw_grid(across: Axis, up: Axis, x_label: str) -> list[str]:
    """Draw horizontal lines and the numbers of both axes."""
    parts = []
    ticks = compute_ticks(up)
    for tick, label in zip(ticks, format_ticks(ticks), strict=True):
        y = get_y(up, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    parts.append(
        f'<text x="{LEFT - 6}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>'
    )
    ticks = compute_ticks(across)
    parts.extend(
        f'<text x="{get_x(across, tick)}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>'
        for tick, label in zip(ticks, format_ticks(ticks), strict=True)
        # the label of the axis stands at its left end
        if get_x(across, tick) > LEFT + 12
    )
    return parts


def compute_ticks(axis: Axis) -> list[float]:
    """Return four to six round values within the range, or as near to that as round steps give."""
    rough = math.floor(math.log10((axis.high - axis.low) / MAX_TICKS))
    found = []
    for step in (factor * 10.0**power for power in (rough, rough + 1) for factor in STEPS):
        first = math.ceil(axis.low / step - 1e-9)
        last = math.floor(axis.high / step + 1e-9)
        found.append([number * step for number in range(first, last + 1)])
    return min(found, key=lambda ticks: max(MIN_TICKS - len(ticks), len(ticks) - MAX_TICKS, 0))


def draw_chart_curve(curve: ChartCurve, series: MetricSeries, across: Axis, up: Axis) -> list[str]:
    """Draw a line, a pale one under a smoothed one, or a dot for a single point."""
    if len(series.x) == 1:
        x, y = get_x(across, series.x[0]), get_y(up, series.y[0])
        return [f'<circle {curve.look} cx="{x}" cy="{y}" r="2.5"/>']
    lines = [("", series)]
    if len(series.x) >= MIN_SMOOTHED_POINTS:
        smoothed = MetricSeries(series.x, smooth_values(series.y, SMOOTHING_WEIGHT))
        lines = [(' opacity="0.25"', series), ("", smoothed)]
    return [
        f'<polyline {curve.look}{opacity} points="{format_points(line, across, up)}"/>'
        for opacity, line in lines
        if line.x
    ]


def format_points(series: MetricSeries, across: Axis, up: Axis) -> str:
    """Format the points of a line at visible resolution."""
    few = downsample_series(series, MAX_POINTS)
    return " ".join(
        f"{get_x(across, x):g},{get_y(up, y):g}" for x, y in zip(few.x, few.y, strict=True)
    )


def draw_mark(across: Axis, x: float) -> str:
    """Draw a tick on the x axis."""
    at, bottom = get_x(across, x), HEIGHT - BOTTOM
    return f'<line class="mark" x1="{at}" x2="{at}" y1="{bottom - MARK_HEIGHT}" y2="{bottom}"/>'


def draw_cross(curve: ChartCurve, across: Axis, x: float) -> str:
    """Draw a cross on the upper edge, for a value that is not finite."""
    at, size = get_x(across, x), CROSS_SIZE
    return (
        f'<path {curve.look} d="M{at - size:g} {TOP - size:g}l{2 * size:g} {2 * size:g}'
        f'm0 {-2 * size:g}l{-2 * size:g} {2 * size:g}"/>'
    )


def describe_curve(curve: ChartCurve) -> str:
    """Return the first, last and lowest value in words, for readers who do not see the drawing."""
    values = curve.finite.y
    if not values:
        return f"{curve.name}: no finite values"
    first, last, low, high = (
        format_metric(curve.metric, value)
        for value in (values[0], values[-1], min(values), max(values))
    )
    return f"{curve.name}: first {first}, last {last}, lowest {low}, highest {high}"


def build_legend(curves: Sequence[ChartCurve], unit: str) -> str:
    """List the curves with their last values."""
    items = []
    for curve in curves:
        dashed = " dashed" if curve.has_dashes else ""
        items.append(
            f'<li><span class="swatch b{curve.number % NUM_COLORS + 1}{dashed}"></span>'
            f'<span class="name">{escape_name(curve.name)}</span> '
            f'<span class="figure">{format_last(curve, unit)}</span></li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def format_last(curve: ChartCurve, unit: str) -> str:
    """Format the last value of a curve with its unit."""
    value = format_metric(curve.metric, curve.series.y[-1])
    return escape(f"{value} {unit}" if unit else value)


def build_value_table(title: str, curves: Sequence[ChartCurve], x_label: str) -> str:
    """Build the folded table of values, thinned out if there are many."""
    every = sorted({x for curve in curves for x in curve.series.x})
    stride = math.ceil(len(every) / MAX_TABLE_ROWS)
    shown = [x for at, x in enumerate(every) if at % stride == 0 or at == len(every) - 1]
    columns = [dict(zip(curve.series.x, curve.series.y, strict=True)) for curve in curves]
    head = "".join(
        f'<th scope="col">{escape_name(name)}</th>'
        for name in [x_label, *(curve.name for curve in curves)]
    )
    rows = [
        f"<tr><td>{format_figure(x)}</td>"
        + "".join(
            f"<td>{format_metric(curve.metric, column.get(x))}</td>"
            for curve, column in zip(curves, columns, strict=True)
        )
        + "</tr>"
        for x in shown
    ]
    return (
        f'<details><summary>{escape(title)} as a table</summary>\n<div class="scroll" '
        f'tabindex="0" role="group" aria-label="values of {escape(title)}">'
        f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div></details>"
    )


def get_x(across: Axis, value: float) -> float:
    """Return pixels from the left."""
    return round(LEFT + (across.to_fraction(value) or 0.0) * (WIDTH - LEFT - RIGHT), 1)


def get_y(up: Axis, value: float) -> float:
    """Return pixels from the top."""
    return round(HEIGHT - BOTTOM - (up.to_fraction(value) or 0.0) * (HEIGHT - TOP - BOTTOM), 1)


def get_chart_title(names: Sequence[str]) -> str:
    """Return the title of a chart of some metrics."""
    return format_metric_title(names[0])
