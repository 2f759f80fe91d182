"""`titanrun plot`: the numbers that are drawn are those that were logged."""

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from titanrun.cli.plot import run as plot
from titanrun.cli.plots import braille, svg
from titanrun.cli.plots.axes import PlotCurve
from titanrun.components.metrics.spec.metrics_file import MetricsFile, read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.runs.metric_series import (
    MetricSeries,
    downsample_series,
    load_metric_series,
    smooth_values,
)

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
SVG = "{http://www.w3.org/2000/svg}"


def make_run(folder: Path, losses: tuple[float, ...], *overrides: str) -> str:
    """A run directory with a loss for each step, of 10 tokens and 0.5 s."""
    folder.mkdir()
    file = MetricsFile(folder / "metrics.jsonl")
    for step, loss in enumerate(losses, start=1):
        file.write(
            step,
            {
                "loss": loss,
                "tokens_seen": 10 * step,
                "time/step_seconds": 0.5,
                "validation/loss": loss + 1,
            },
        )
    file.close()
    (folder / "resolved.yaml").write_text(
        resolve_recipe(DEBUG, list(overrides), environment={}).text
    )
    return str(folder)


def test_the_fast_reader_reads_what_the_parser_reads(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", (3.0, math.nan, 1e-7, -math.inf, 5e22))
    file = MetricsFile(tmp_path / "a" / "metrics.jsonl")
    file.write(4, {"loss": 0.25, "tokens_seen": 7})
    file.close()
    parsed = {line["step"]: line["loss"] for line in read_metrics(Path(run) / "metrics.jsonl")}
    found = load_metric_series(Path(run) / "metrics.jsonl", "loss", "step")
    assert repr(dict(zip(found.x, found.y, strict=True))) == repr(
        {float(step): value for step, value in parsed.items()}
    )


def test_lines_of_another_hand_are_parsed_and_damaged_ones_reported(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"loss": 3, "step": 1}\n{"step":2,"loss":2.5}\n')
    assert load_metric_series(file, "loss", "step") == MetricSeries([1.0, 2.0], [3.0, 2.5])
    file.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "lo\n{"step": 3, "loss": 1.0}\n')
    with pytest.raises(ProblemsFound, match=":2 is not a JSON object"):
        load_metric_series(file, "loss", "step")


def test_x_is_steps_tokens_or_seconds_of_training(tmp_path: Path) -> None:
    file = Path(make_run(tmp_path / "a", (3.0, 2.0, 1.0))) / "metrics.jsonl"
    assert [list(load_metric_series(file, "loss", x).x) for x in ("step", "tokens", "time")] == [
        [1, 2, 3],
        [10, 20, 30],
        [0.5, 1, 1.5],
    ]


def test_time_counts_the_steps_between_logged_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 1, "loss": 3.0, "time/step_seconds": 2.0},
        {"step": 11, "loss": 2.0, "time/step_seconds": 0.5},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert load_metric_series(file, "loss", "time").x == [2.0, 7.0]


def test_smoothing_starts_without_bias_and_keeps_gaps() -> None:
    assert smooth_values([2.0, 2.0, 2.0], 0.9) == pytest.approx([2.0, 2.0, 2.0])
    # weights 0.5 and 1 of the two: (0.5 * 1 + 4) / 1.5
    assert smooth_values([1.0, 4.0], 0.5) == pytest.approx([1.0, 3.0])
    assert math.isnan(smooth_values([1.0, math.nan, 4.0], 0.5)[1])


def test_thinning_keeps_peaks_ends_and_few_points() -> None:
    values = [0.0] * 100_000
    values[54_321], values[77] = 9.0, -9.0
    kept = downsample_series(MetricSeries(range(100_000), values), 2000)
    assert len(kept.y) <= 2100
    assert (54_321, 9.0) in set(zip(kept.x, kept.y, strict=True)) and (77, -9.0) in set(
        zip(kept.x, kept.y, strict=True)
    )
    assert (kept.x[0], kept.x[-1]) == (0, 99_999)


def test_a_file_has_a_line_for_each_run_and_a_band_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (
        make_run(tmp_path / "a", (4.0, 2.0), "debug.seed=1"),
        make_run(tmp_path / "b", (2.0, 0.0), "debug.seed=2"),
    )
    c = make_run(tmp_path / "c", (4.0, 0.0), "optimizer.lr=0.5")
    file = tmp_path / "x.svg"
    assert plot([a, b, c, "--seeds", "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    left, right, top, bottom = map(
        float, (svg.LEFT, svg.WIDTH - svg.RIGHT, svg.TOP, svg.HEIGHT - svg.BOTTOM)
    )
    middle, quarter, deep = (
        (top + bottom) / 2,
        top + (bottom - top) / 4,
        top + (bottom - top) * 3 / 4,
    )
    assert [line.get("points") for line in root.iter(f"{SVG}polyline")] == [
        f"{left},{quarter} {right},{deep}",
        f"{left},{top} {right},{bottom}",
    ]
    assert [band.get("points") for band in root.iter(f"{SVG}polygon")] == [
        f"{left},{middle} {right},{bottom} {right},{middle} {left},{top}"
    ]
    assert f"{a} and 1 other seed" in {text.text for text in root.iter(f"{SVG}text")}


def test_a_metric_in_the_place_of_a_run_is_told_its_option(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, (3.0, 2.0)) for name in "ab")
    with pytest.raises(ProblemsFound) as caught:
        plot([first, second, "validation/loss"])
    (problem,) = caught.value.problems
    assert problem.message == "'validation/loss' is a metric, not a run"
    assert problem.hint == f"titanrun plot {first} {second} --metric validation/loss"
    with pytest.raises(ProblemsFound) as caught:
        plot([first, "loss", "validation/loss"])
    assert caught.value.problems[0].hint == (
        f"titanrun plot {first} --metric loss, then titanrun plot {first} --metric validation/loss"
    )
    with pytest.raises(ProblemsFound) as caught:
        plot([first, str(tmp_path / "c")])
    assert "is a metric" not in caught.value.problems[0].message


def test_where_a_run_is_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in "ab":
        run = Path(make_run(tmp_path / "runs" / name, (3.0, 2.0)))
        (run / "run.json").write_text('{"name": "mine"}')
    plot(["a", "b", "a"])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run: ")]
    assert told == ["run: runs/a", "run: runs/b"]


def test_a_png_file_is_the_same_drawing(tmp_path: Path) -> None:
    a, b = (
        make_run(tmp_path / "a", (4.0, 2.0), "debug.seed=1"),
        make_run(tmp_path / "b", (2.0, 0.0), "debug.seed=2"),
    )
    file = tmp_path / "x.png"
    assert plot([a, b, "--seeds", "--out", str(file)]) == 0
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    assert picture.size == (2 * svg.WIDTH, 2 * svg.HEIGHT)
    left, right, top, bottom = (
        2 * edge for edge in (svg.LEFT, svg.WIDTH - svg.RIGHT, svg.TOP, svg.HEIGHT - svg.BOTTOM)
    )
    first, white = (0x00, 0x72, 0xB2), (255, 255, 255)
    # the mean falls through the middle, with its band above and below, and nothing is in the
    # corners
    assert picture.getpixel(((left + right) // 2, (top + bottom) // 2)) == first
    for share in (0.4, 0.6):
        red, green, blue = picture.getpixel(
            ((left + right) // 2, round(top + (bottom - top) * share))
        )
        assert red < green < blue and (red, green, blue) not in (first, white)
    assert (
        picture.getpixel((right - 6, top + 6)) == picture.getpixel((left + 6, bottom - 6)) == white
    )


def test_in_the_terminal_each_curve_ends_in_its_letter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [make_run(tmp_path / "a", (4.0, 2.0)), make_run(tmp_path / "b", (2.0, 1.0))]
    assert plot([*words, "--x", "tokens", "--log", "y"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[-1] for line in lines[1:17] if line[-1] in "ab"] == ["a", "b"]
    assert lines[-2:] == [f"a  {words[0]}: 2 at tokens 20", f"b  {words[1]}: 1 at tokens 20"]
    assert max(map(len, lines[:-2])) <= 80


def test_curves_that_end_in_one_place_keep_their_letters_and_colours() -> None:
    text = braille.plot_braille(
        [PlotCurve(str(at), [0, 1], [0, 1]) for at in range(3)], width=40, use_color=True
    )
    assert all(f"\x1b[{braille.COLOR_CODES[at]}m{'abc'[at]}\x1b[0m" in text for at in range(3))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--metric", "los"], "has no metric 'los'"),
        (["a", "--smooth", "1"], "--smooth 1 is not in [0, 1)"),
        (["a", "--out", "x.gif"], "'x.gif' is neither an SVG nor a PNG file"),
        (["a", "--seeds", "--x", "time"], "times differ between runs"),
        (["nowhere"], "no run in runs/ has the name 'nowhere'"),
        (["empty"], "cannot read empty/metrics.jsonl"),
        (["flat", "--log", "y"], "loss has no value that can be plotted"),
        (["bare/metrics.jsonl", "--seeds"], "its seed is unknown"),
        (["bare", "--x", "tokens"], "has no token counts"),
    ],
    ids=str,
)
def test_a_mistake_is_a_problem(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", (3.0, 2.0))
    make_run(tmp_path / "flat", (0.0, 0.0))
    for name in ("empty", "bare"):
        (tmp_path / name).mkdir()
    (tmp_path / "bare" / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    with pytest.raises(ProblemsFound) as caught:
        plot(words)
    assert message in str(caught.value)
