"""Charts as SVG: points at their places, crosses for what is no number, and all of it in words."""

import math
import re
from xml.etree import ElementTree

import pytest

from titanrun.cli.plots.axes import Axis
from titanrun.report import chart
from titanrun.report.chart import ChartCurve, build_chart, compute_ticks, draw_svg
from titanrun.report.figures import format_ticks
from titanrun.runs.metric_series import MetricSeries

LEFT, RIGHT = chart.LEFT, chart.WIDTH - chart.RIGHT
TOP, BOTTOM = chart.TOP, chart.HEIGHT - chart.BOTTOM


def draw(*curves: ChartCurve, marks: tuple[float, ...] = ()) -> ElementTree.Element:
    return ElementTree.fromstring(draw_svg("Loss <1>", curves, "step", marks))


def lines_of(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        for line in root.iter("polyline")
    ]


def test_points_are_where_they_belong() -> None:
    """The y axis has a margin of 6 % on both sides: 0 to 1 are drawn from -.06 to 1.06."""
    curve = ChartCurve("a", "loss", MetricSeries([0, 5, 10], [0, 0.5, 1]))
    ((first, middle, last),) = lines_of(draw(curve))
    height = BOTTOM - TOP
    assert first == (LEFT, pytest.approx(BOTTOM - height * 0.06 / 1.12, abs=0.05))
    assert middle == ((LEFT + RIGHT) / 2, pytest.approx((TOP + BOTTOM) / 2, abs=0.05))
    assert last == (RIGHT, pytest.approx(TOP + height * 0.06 / 1.12, abs=0.05))


def test_a_drawing_says_in_words_what_it_shows() -> None:
    curve = ChartCurve("a", "loss", MetricSeries([1, 2, 3], [4.0, 2.0, 3.0]))
    root = draw(curve)
    assert root.get("role") == "img" and root.get("width") is None and root.get("viewBox")
    assert root.findtext("title") == "Loss <1> by step"
    assert root.findtext("desc") == "a: first 4.0000, last 3.0000, lowest 2.0000, highest 4.0000"


def test_values_that_are_no_numbers_are_crosses_on_the_upper_edge() -> None:
    series = MetricSeries([0, 1, 2, 3, 4], [5.0, math.nan, 4.0, math.inf, 3.0])
    root = draw(ChartCurve("a", "loss", series))
    crosses = [path.get("d", "") for path in root.iter("path")]
    starts = [re.match(r"M([\d.]+) ([\d.]+)", cross) for cross in crosses]
    assert [float(start[1]) + chart.CROSS_SIZE for start in starts if start] == [
        pytest.approx(LEFT + (RIGHT - LEFT) * share, abs=0.05) for share in (0.25, 0.75)
    ]
    assert all(float(start[2]) + chart.CROSS_SIZE == TOP for start in starts if start)
    assert len(lines_of(root)[0]) == 3


def test_many_points_are_smoothed_over_the_pale_original() -> None:
    values = [(-1.0) ** step for step in range(400)]
    root = draw(ChartCurve("a", "loss", MetricSeries([*range(400)], values)))
    pale, smooth = root.iter("polyline")
    assert (pale.get("opacity"), smooth.get("opacity")) == ("0.25", None)
    raw, drawn = lines_of(root)
    # the average of 1 and -1 is drawn in the middle, the original over the whole height
    heights = [y for _, y in drawn[-10:]]
    assert all(abs(y - (TOP + BOTTOM) / 2) < 10 for y in heights)
    assert max(y for _, y in raw) - min(y for _, y in raw) > 0.8 * (BOTTOM - TOP)
    few = draw(ChartCurve("a", "loss", MetricSeries([*range(99)], values[:99])))
    assert len(lines_of(few)) == 1


def test_a_run_keeps_its_color_and_the_ninth_is_dashed() -> None:
    curves = [
        ChartCurve(f"run {number}", "loss", MetricSeries([0, 1], [number, number + 1]), number)
        for number in range(9)
    ]
    root = draw(*curves)
    looks = [(line.get("class"), line.get("stroke-dasharray")) for line in root.iter("polyline")]
    assert looks[0] == ("s1", None) and looks[7] == ("s8", None) and looks[8] == ("s1", "6 3")
    html = build_chart("Loss", curves)
    assert html.count("<li>") == 9 and "run 8" in html


def test_marks_and_a_single_point_are_drawn() -> None:
    root = draw(ChartCurve("a", "loss", MetricSeries([0, 10], [1, 2])), marks=(5, 20))
    (mark,) = (line for line in root.iter("line") if line.get("class") == "mark")
    assert float(mark.get("x1", 0)) == (LEFT + RIGHT) / 2
    alone = draw(ChartCurve("a", "loss", MetricSeries([3], [1.0])))
    assert len([*alone.iter("circle")]) == 1 and lines_of(alone) == []
    nothing = draw(ChartCurve("a", "loss", MetricSeries([3], [math.nan])))
    assert len([*nothing.iter("path")]) == 1


def test_the_table_is_thinned_out_and_ends_with_the_last_step() -> None:
    series = MetricSeries([*range(1000)], [float(step) for step in range(1000)])
    html = build_chart("Loss", [ChartCurve("a", "loss", series)])
    rows = re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td></tr>", html)
    assert rows[0] == ("0", "0.0000") and rows[-1] == ("999", "999.0000")
    assert len(rows) <= chart.MAX_TABLE_ROWS + 1


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.58, 1.14, ["0.6", "0.7", "0.8", "0.9", "1.0", "1.1"]),
        (0.0, 0.0021, ["0", "5.0e-4", "1.0e-3", "1.5e-3", "2.0e-3"]),
        (1, 80, ["20", "40", "60", "80"]),
        (1, 100_000, ["20,000", "40,000", "60,000", "80,000", "100,000"]),
        (3.6, 8.3, ["4", "5", "6", "7", "8"]),
    ],
)
def test_an_axis_has_four_to_six_round_numbers_that_are_written_alike(
    low: float, high: float, labels: list[str]
) -> None:
    assert format_ticks(compute_ticks(Axis(low, high))) == labels
