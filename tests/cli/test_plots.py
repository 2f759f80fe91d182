"""What a picture shows is read back from it: dots and points at the places that the numbers say."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from titanrun.cli.plots import braille, svg
from titanrun.cli.plots.axes import Axis, PlotCurve, build_axis, format_tick
from titanrun.cli.show import run as show
from titanrun.config.problems import ProblemsFound

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
NAN = float("nan")


def dots(text: str) -> set[tuple[int, int]]:
    """Column and row, from the top left, of every dot of a plot."""
    found = set()
    for row, line in enumerate(text.splitlines()):
        signs = re.sub(r"^.*?[┤│]", "", line)
        for column, sign in enumerate(signs):
            bits = ord(sign) - braille.BLANK
            if 0 < bits < 256:
                found |= {
                    (column * 2 + right, row * 4 + down)
                    for down in range(4)
                    for right in range(2)
                    if bits & braille.DOTS[down][right]
                }
    return found


def test_a_line_goes_from_the_lower_left_to_the_upper_right_corner() -> None:
    seen = dots(braille.plot_braille([PlotCurve("", [0, 1], [0, 1])], width=40, height=10))
    columns = max(column for column, _ in seen) + 1
    assert (0, 39) in seen and (columns - 1, 0) in seen
    assert all(abs(row / 39 - (1 - column / (columns - 1))) < 0.1 for column, row in seen)


def test_a_number_that_is_none_is_a_gap() -> None:
    whole = dots(braille.plot_braille([PlotCurve("", range(5), [1, 2, 3, 4, 5])], width=60))
    broken = dots(braille.plot_braille([PlotCurve("", range(5), [1, 2, NAN, 4, 5])], width=60))
    assert broken < whole


@pytest.mark.parametrize("width", [30, 80, 200])
def test_it_fits(width: int) -> None:
    text = braille.plot_braille(
        [PlotCurve("", range(1000), [0.001 * x for x in range(1000)])], width=width, x_label="step"
    )
    assert max(map(len, text.splitlines())) <= width
    assert text.rstrip().endswith("step")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.5, 1]),
        (3, 17, [5, 10, 15]),
        (0, 0.002, [0, 5e-4, 1e-3, 1.5e-3, 2e-3]),
        (-2, 2, [-2, -1, 0, 1, 2]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert Axis(low, high).compute_ticks(4) == pytest.approx(ticks)


def test_a_log_axis_has_powers_of_ten_and_no_place_for_zero() -> None:
    logarithmic = build_axis([0.01, 0, 100], "log")
    assert logarithmic.compute_ticks(5) == [0.01, 0.1, 1, 10, 100]
    assert (logarithmic.to_fraction(1.0), logarithmic.to_fraction(0)) == (0.5, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0005, "0.0005"),
        (1000, "1000"),
        (50_000, "50,000"),
        (1.25e-7, "1.25e-7"),
        (3.2e12, "3.2e12"),
    ],
)
def test_a_label_is_short(value: float, text: str) -> None:
    assert format_tick(value) == text


def test_an_svg_file_has_the_points_where_they_belong() -> None:
    root = ElementTree.fromstring(
        svg.plot_svg(
            [PlotCurve("a<b", [0, 10], [0, 1]), PlotCurve("c", [0, 10], [1, 1])],
            title="t & u",
            x_label="step",
        )
    )
    lines = [
        element.get("points", "") for element in root.iter("{http://www.w3.org/2000/svg}polyline")
    ]
    left, right, top, bottom = map(
        float, (svg.LEFT, svg.WIDTH - svg.RIGHT, svg.TOP, svg.HEIGHT - svg.BOTTOM)
    )
    assert lines == [f"{left},{bottom} {right},{top}", f"{left},{top} {right},{top}"]
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a<b", "c", "t & u", "step"} <= set(texts)


def test_show_plots_the_learning_rate_of_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lr.svg"
    overrides = [
        "training.steps=4",
        "lr_scheduler={name: constant, warmup_steps: 2}",
        "optimizer.lr=0.5",
    ]
    assert show([DEBUG, "--plot", "lr_scheduler", "-o", str(file), *overrides]) == 0
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    (line,) = (
        element.get("points", "") for element in root.iter("{http://www.w3.org/2000/svg}polyline")
    )
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert heights == pytest.approx([svg.HEIGHT - svg.BOTTOM, svg.TOP, svg.TOP, svg.TOP])
    capsys.readouterr()
    assert show([DEBUG, "--plot", "lr_scheduler", *overrides]) == 0
    assert "learning rate: constant" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("100", "for a schedule over 100 steps, write --plot training.steps=100"),
        ("loss", "write --plot alone; titanrun plot RUN --metric loss plots metrics of a run"),
    ],
)
def test_a_recipe_has_one_plot_and_says_how_to_get_others(word: str, hint: str) -> None:
    with pytest.raises(ProblemsFound, match=f"shows lr_scheduler, not '{word}'") as caught:
        show([DEBUG, "--plot", word])
    assert caught.value.problems[0].hint == hint


def test_a_run_without_a_number_of_steps_cannot_be_plotted() -> None:
    with pytest.raises(ProblemsFound, match="does not set a number of steps to plot"):
        show([DEBUG, "--plot", "lr_scheduler", "training.steps=null", "training.epochs=1"])
