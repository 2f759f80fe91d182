"""`titanrun plot`: a metric of one run or of several, in the terminal or as a file."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.plots import braille, svg
from titanrun.cli.plots.axes import Curve, Scale
from titanrun.cli.terminal import columns
from titanrun.config.counted import counted
from titanrun.config.problems import fail
from titanrun.launch.environment import colour_wanted
from titanrun.ledger.series import Series, Spread, X, read_series, smoothed, spread, thinned
from titanrun.recipe.run_files import METRICS, RESOLVED

EXAMPLES = """  titanrun plot runs/first
  titanrun plot runs/a runs/b --metric validation/loss --x tokens
  titanrun plot runs/a runs/b --smooth 0.9 --log x --log y --out losses.svg
  titanrun plot runs/seed-* runs/other-* --seeds            mean and range of runs that differ in the seed only"""
SUMMARY = (
    "Draw a metric of one run or several, in the terminal or as an SVG or PNG file. Runs that are training now are drawn as far as they "
    "are. Of several lines of one step in metrics.jsonl the last counts."
)
# more points than a wide screen has dots say nothing more
MOST_POINTS = 2000
# columns where the output is no terminal
PIPED = 80
HEIGHT = 16
LABELS: dict[X, str] = {"step": "step", "tokens": "tokens", "time": "seconds of training"}


def run(arguments: list[str]) -> int:
    """Draw, and say below which curve is whose."""
    parser = Parser("plot", SUMMARY, EXAMPLES)
    parser.add_argument(
        "runs", metavar="run", nargs="+", help="run directories, or files like metrics.jsonl"
    )
    parser.add_argument(
        "--metric",
        default="loss",
        metavar="NAME",
        help="a key of metrics.jsonl: loss (the default), grad_norm, tps ...",
    )
    parser.add_argument(
        "--x",
        choices=("step", "tokens", "time"),
        default="step",
        help="time: seconds of training, pauses left out",
    )
    parser.add_argument(
        "--smooth",
        type=float,
        default=0.0,
        metavar="W",
        help="moving average that keeps W of what was before, such as 0.9",
    )
    parser.add_argument(
        "--log",
        action="append",
        choices=("x", "y"),
        default=[],
        help="a logarithmic axis; may be given twice",
    )
    parser.add_argument(
        "--seeds",
        action="store_true",
        help="one curve for runs that differ in debug.seed only: their mean, and a band",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="",
        help="draw into this file, which ends in .svg or .png",
    )
    options = parser.parse_args(arguments)
    refuse_senseless(options)
    read = {
        named: thinned_late(read_run(named, options), options)
        for named in dict.fromkeys(options.runs)
    }
    curves = (
        by_recipe(read)
        if options.seeds
        else [curve_of(named, series) for named, series in read.items()]
    )
    if not any(
        isfinite(value) and (value > 0 or "y" not in options.log)
        for curve in curves
        for value in curve.y
    ):
        raise fail(
            "usage",
            f"{options.metric} has no value that can be drawn",
            help="NaN and infinity are no places, nor on --log y is zero",
        )
    scales: dict[str, Scale] = {
        f"{name}_scale": "log" if name in options.log else "linear" for name in ("x", "y")
    }
    title = options.metric + (f", smoothed with {options.smooth:g}" if options.smooth else "")
    if options.out:
        Path(options.out).write_bytes(
            drawn(
                curves, Path(options.out).suffix, title=title, x_label=LABELS[options.x], **scales
            )
        )
        print(options.out)
        return 0
    is_coloured = colour_wanted(sys.stdout.isatty())
    print(title)
    text = braille.plot(
        curves,
        width=columns() or PIPED,
        height=HEIGHT,
        x_label=LABELS[options.x],
        colour=is_coloured,
        **scales,
    )
    sys.stdout.write(text)
    sys.stdout.write("".join(legend(curves, options, is_coloured=is_coloured)))
    return 0


def refuse_senseless(options: Namespace) -> None:
    """Raise a problem for options that mean nothing."""
    if not 0 <= options.smooth < 1:
        raise fail(
            "usage",
            f"--smooth {options.smooth:g} is no share of what was before",
            help="give 0 or more and less than 1, such as 0.9",
        )
    if options.seeds and options.x == "time":
        raise fail(
            "usage",
            "--seeds averages runs at the same x, and no two runs take the same time",
            help="use --x step or --x tokens",
        )
    if options.out and Path(options.out).suffix not in (".svg", ".png"):
        raise fail(
            "usage",
            f"'{options.out}' is neither an SVG nor a PNG file",
            help="name a file that ends in .svg or .png",
        )
    if len(set(options.runs)) > len(braille.LETTERS) and not options.out:
        raise fail(
            "usage",
            f"{len(set(options.runs))} curves cannot be told apart in a terminal",
            help="name fewer runs, or --out FILE.svg",
        )


def drawn(
    curves: Sequence[Curve], kind: str, *, title: str, x_label: str, x_scale: Scale, y_scale: Scale
) -> bytes:
    """The picture as a file of one kind, .svg or .png."""
    if kind == ".svg":
        return svg.plot(
            curves, title=title, x_label=x_label, x_scale=x_scale, y_scale=y_scale
        ).encode()
    if find_spec("PIL") is None:
        raise fail(
            "usage",
            "a PNG file needs pillow",
            help='pip install "titanrun[png]", or name a file that ends in .svg',
        )
    from titanrun.cli.plots import png

    return png.plot(curves, title=title, x_label=x_label, x_scale=x_scale, y_scale=y_scale)


def read_run(named: str, options: Namespace) -> Series:
    """What is drawn of a run, smoothed."""
    path = Path(named)
    series = read_series(path / METRICS if path.is_dir() else path, options.metric, options.x)
    return Series(series.x, smoothed(series.y, options.smooth)) if options.smooth else series


def thinned_late(series: Series, options: Namespace) -> Series:
    """A series with no more points than can be seen; runs that are averaged keep all, to have the same x."""
    return series if options.seeds else thinned(series, MOST_POINTS)


def curve_of(name: str, series: Series) -> Curve:
    """A run's curve."""
    return Curve(name, series.x, series.y)


def by_recipe(read: dict[str, Series]) -> list[Curve]:
    """One curve for all runs of a recipe whatever their seed; it has a band where there are several."""
    groups: dict[str, list[str]] = {}
    for named in read:
        groups.setdefault(recipe_but_seed(named), []).append(named)
    return [group_curve(names, [read[named] for named in names]) for names in groups.values()]


def recipe_but_seed(named: str) -> str:
    """The text of a run's recipe without its seed and what names or describes it. Raises ProblemsFound where there is no recipe."""
    from titanrun.config.base import dump
    from titanrun.config.emit import emit
    from titanrun.recipe.resolve import read_resolved

    path = Path(named)
    folder = path if path.is_dir() else path.parent
    if not (folder / RESOLVED).is_file():
        raise fail(
            "file",
            f"'{folder}' holds no {RESOLVED}: its seed is not known",
            help="name run directories, or leave --seeds out",
        )
    data = dump(read_resolved(folder / RESOLVED))
    kept = {key: value for key, value in data.items() if key not in ("name", "description")}
    return emit({**kept, "debug": {**kept["debug"], "seed": 0}})


def group_curve(names: Sequence[str], many: Sequence[Series]) -> Curve:
    """The mean of several runs with the range between them; one alone is drawn as it is."""
    if len(many) == 1:
        return curve_of(names[0], thinned(many[0], MOST_POINTS))
    found = spread(many)
    if not found.x:
        raise fail(
            "usage", f"the runs {', '.join(names)} have no step in common", help="leave --seeds out"
        )
    every = -(-len(found.x) // MOST_POINTS)
    few = Spread(found.x[::every], found.mean[::every], found.low[::every], found.high[::every])
    return Curve(
        f"{names[0]} and {counted(len(names) - 1, 'other seed')}",
        few.x,
        few.mean,
        few.low,
        few.high,
    )


def legend(curves: Sequence[Curve], options: Namespace, *, is_coloured: bool) -> list[str]:
    """A line for each curve: its letter, whose it is, and its last value."""
    found = []
    for index, curve in enumerate(curves):
        last = f"{curve.y[-1]:.6g} at {LABELS[options.x]} {curve.x[-1]:,.6g}"
        mark = f"{braille.LETTERS[index]}  " if len(curves) > 1 else ""
        found.append(
            f"{braille.painted(mark, index) if is_coloured and mark else mark}{curve.name}: {last}\n"
        )
    return found
