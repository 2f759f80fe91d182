"""`titanrun plot`: plot a metric of one or several runs in the terminal or into a file."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.plots import braille, svg
from titanrun.cli.plots.axes import PlotCurve, Scale
from titanrun.cli.run_argument import find_run, is_path
from titanrun.cli.run_groups import check_no_groups
from titanrun.cli.terminal import get_terminal_width
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.launch_env import should_use_color
from titanrun.recipe.rundir.run_files import METRICS, RESOLVED
from titanrun.runs.metric_series import (
    MetricSeries,
    SeriesSpread,
    XAxis,
    compute_spread,
    downsample_series,
    load_metric_series,
    smooth_values,
)

EXAMPLES = """  titanrun plot runs/first
  titanrun plot runs/a runs/b --metric validation/loss --x tokens
  titanrun plot runs/a runs/b --smooth 0.9 --log x --log y --out losses.svg
  titanrun plot runs/seed-* runs/other-* --seeds  mean and range over seeds"""
SUMMARY = (
    "Plot a metric of one or several runs in the terminal or into an SVG or PNG file. Running "
    "runs are plotted up to their last step. Of several lines of one step in metrics.jsonl the "
    "last counts. A fork continues the steps of the checkpoint that it started from, if "
    "a relative is plotted too."
)
# more points than a wide screen has dots add no information
MAX_POINTS = 2000
ALIGNMENTS = ("step", "tokens", "lineage")
# columns if the output is not a terminal
PIPED_WIDTH = 80
HEIGHT = 16
X_LABELS: dict[XAxis, str] = {"step": "step", "tokens": "tokens", "time": "seconds of training"}


def run(arguments: list[str]) -> int:
    """Plot, and print a legend below."""
    options = parse_plot_options(arguments)
    check_plot_options(options)
    options.runs = find_plotted_runs(options.runs)
    if options.align == "tokens":
        options.x = "tokens"
    starts = {} if options.align in ("step", "tokens") else find_starts(options.runs, options.x)
    read = {
        named: downsample_unless_averaged(
            load_run_series(named, options, starts.get(named)), options
        )
        for named in dict.fromkeys(options.runs)
    }
    curves = (
        build_recipe_curves(read)
        if options.seeds
        else [build_run_curve(named, series, starts.get(named)) for named, series in read.items()]
    )
    if not any(
        isfinite(value) and (value > 0 or "y" not in options.log)
        for curve in curves
        for value in curve.y
    ):
        raise problem_error(
            "usage",
            f"{options.metric} has no value that can be plotted",
            hint="NaN and infinity cannot be plotted, nor can zero with --log y",
        )
    scales: dict[str, Scale] = {
        f"{name}_scale": "log" if name in options.log else "linear" for name in ("x", "y")
    }
    title = options.metric + (f", smoothed with {options.smooth:g}" if options.smooth else "")
    title += ", aligned by lineage" if starts else ""
    if options.out:
        Path(options.out).write_bytes(
            render_plot_file(
                curves, Path(options.out).suffix, title=title, x_label=X_LABELS[options.x], **scales
            )
        )
        print(options.out)
        return 0
    print(title)
    print_plot(curves, options, scales)
    return 0


def find_plotted_runs(named: Sequence[str]) -> list[str]:
    """Return the folders of the runs. Each is told once, where it is."""
    check_no_groups("plot", list(filter(is_path, named)), takes_many=True)
    first = named[0]
    found = {first: find_run(first)}
    check_names_no_metric(named, found[first])
    found |= {word: find_run(word) for word in dict.fromkeys(named) if word != first}
    return [found[word] for word in named]


def print_plot(curves: Sequence[PlotCurve], options: Namespace, scales: dict[str, Scale]) -> None:
    """Plot in the terminal."""
    use_color = should_use_color(sys.stdout.isatty())
    text = braille.plot_braille(
        curves,
        width=get_terminal_width() or PIPED_WIDTH,
        height=HEIGHT,
        x_label=X_LABELS[options.x],
        use_color=use_color,
        **scales,
    )
    sys.stdout.write(text)
    sys.stdout.write("".join(format_plot_legend(curves, options, use_color=use_color)))


def parse_plot_options(arguments: list[str]) -> Namespace:
    """Parse the command line."""
    parser = CommandParser("plot", SUMMARY, EXAMPLES)
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
        help="time: seconds of training without pauses",
    )
    parser.add_argument(
        "--align",
        choices=ALIGNMENTS,
        help="each run by its own steps or tokens, or forks after their parents (the default)",
    )
    parser.add_argument(
        "--smooth",
        type=float,
        default=0.0,
        metavar="W",
        help="exponential moving average with weight W of previous values, such as 0.9",
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
        help="one curve for runs that differ only in debug.seed: their mean and a band",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="",
        help="plot into this .svg or .png file",
    )
    return parser.parse_args(arguments)


def check_plot_options(options: Namespace) -> None:
    """Raise a problem for invalid options."""
    if not 0 <= options.smooth < 1:
        raise problem_error(
            "usage",
            f"--smooth {options.smooth:g} is not in [0, 1)",
            hint="use 0 or more and less than 1, such as 0.9",
        )
    if options.align == "tokens" and options.x == "time":
        raise problem_error("usage", "--align tokens excludes --x time", hint="omit one of the two")
    if options.seeds and options.x == "time":
        raise problem_error(
            "usage",
            "--seeds averages runs at the same x, but times differ between runs",
            hint="use --x step or --x tokens",
        )
    if options.out:
        check_plot_file(options.out)
    if len(set(options.runs)) > len(braille.LETTERS) and not options.out:
        raise problem_error(
            "usage",
            f"{len(set(options.runs))} curves are too many for a terminal",
            hint="pass fewer runs, or use --out FILE.svg",
        )


def check_names_no_metric(words: Sequence[str], first: str) -> None:
    """Raise a problem for a metric of the first run, in this folder, in the place of another."""
    for word in words[1:]:
        if Path(word).exists() or not is_metric(word, first):
            continue
        metrics = [one for one in words[1:] if not Path(one).exists() and is_metric(one, first)]
        command = ["titanrun", "plot", *(named for named in words if named not in metrics)]
        # a plot has one metric
        ways = [shlex.join([*command, "--metric", metric]) for metric in dict.fromkeys(metrics)]
        raise problem_error("usage", f"'{word}' is a metric, not a run", hint=", then ".join(ways))


def is_metric(word: str, run: str) -> bool:
    """Return whether a run has logged a metric of this name."""
    with suppress(ProblemsFound):
        path = Path(run)
        load_metric_series(path / METRICS if path.is_dir() else path, word, "step")
        return True
    return False


def check_plot_file(file: str) -> None:
    """Raise a problem for a file of a kind that is not plotted."""
    if Path(file).suffix not in (".svg", ".png"):
        raise problem_error(
            "usage",
            f"'{file}' is neither an SVG nor a PNG file",
            hint="use a file name that ends in .svg or .png",
        )


def render_plot_file(
    curves: Sequence[PlotCurve],
    kind: str,
    *,
    title: str,
    x_label: str,
    x_scale: Scale,
    y_scale: Scale,
) -> bytes:
    """Render the plot as a file of one kind, .svg or .png."""
    if kind == ".svg":
        return svg.plot_svg(
            curves, title=title, x_label=x_label, x_scale=x_scale, y_scale=y_scale
        ).encode()
    if find_spec("PIL") is None:
        raise problem_error(
            "usage",
            "a PNG file requires pillow",
            hint='pip install "titanrun[png]", or use a file name that ends in .svg',
        )
    from titanrun.cli.plots import png

    return png.plot_png(curves, title=title, x_label=x_label, x_scale=x_scale, y_scale=y_scale)


@dataclass(frozen=True, slots=True)
class CurveStart:
    """Where the curve of a fork begins: its x, and the step and run in words."""

    x: float
    description: str


def find_starts(names: Sequence[str], x: XAxis) -> dict[str, CurveStart]:
    """Return where the forks begin whose relatives are plotted too, by the name given."""
    if len(set(names)) < 2:
        return {}
    # imports the whole recipe, which a plot of one run does not need
    from titanrun.runs.lineage import compute_x_offset, find_related_ancestors, format_start

    folders = {named: path if (path := Path(named)).is_dir() else path.parent for named in names}
    related = find_related_ancestors(list(folders.values()))
    return {
        named: CurveStart(compute_x_offset(related[folder], x), format_start(related[folder]))
        for named, folder in folders.items()
        if related.get(folder)
    }


def load_run_series(named: str, options: Namespace, start: CurveStart | None) -> MetricSeries:
    """Load the plotted series of a run, smoothed. A fork continues from its first step."""
    path = Path(named)
    series = load_metric_series(
        path / METRICS if path.is_dir() else path, options.metric, options.x
    )
    return MetricSeries(
        series.x if start is None else [x + start.x for x in series.x],
        smooth_values(series.y, options.smooth) if options.smooth else series.y,
    )


def downsample_unless_averaged(series: MetricSeries, options: Namespace) -> MetricSeries:
    """Reduce a series to the visible number of points.

    Runs that are averaged keep all points, so that they share the same x.
    """
    return series if options.seeds else downsample_series(series, MAX_POINTS)


def build_run_curve(name: str, series: MetricSeries, start: CurveStart | None = None) -> PlotCurve:
    """Build the curve of a run. That of a fork is marked where it begins."""
    if start is None:
        return PlotCurve(name, series.x, series.y)
    name = f"{name} (from {start.description})"
    return PlotCurve(name, series.x, series.y, has_start_mark=True)


def build_recipe_curves(read: dict[str, MetricSeries]) -> list[PlotCurve]:
    """Build one curve for all runs of a recipe regardless of seed, with a band for several."""
    groups: dict[str, list[str]] = {}
    for named in read:
        groups.setdefault(dump_recipe_without_seed(named), []).append(named)
    return [build_mean_curve(names, [read[named] for named in names]) for names in groups.values()]


def dump_recipe_without_seed(named: str) -> str:
    """Return a run's recipe without its seed, name and description, as text.

    Raises ProblemsFound if there is no recipe.
    """
    from titanrun.config.base import dump_config
    from titanrun.config.serialize import to_yaml
    from titanrun.recipe.resolving.resolve import load_resolved

    path = Path(named)
    folder = path if path.is_dir() else path.parent
    if not (folder / RESOLVED).is_file():
        raise problem_error(
            "file",
            f"'{folder}' has no {RESOLVED}: its seed is unknown",
            hint="pass run directories, or omit --seeds",
        )
    data = dump_config(load_resolved(folder / RESOLVED))
    kept = {key: value for key, value in data.items() if key not in ("name", "description")}
    return to_yaml({**kept, "debug": {**kept["debug"], "seed": 0}})


def build_mean_curve(names: Sequence[str], many: Sequence[MetricSeries]) -> PlotCurve:
    """Build the mean of several runs with the range between them; one run is drawn as it is."""
    if len(many) == 1:
        return build_run_curve(names[0], downsample_series(many[0], MAX_POINTS))
    found = compute_spread(many)
    if not found.x:
        raise problem_error(
            "usage", f"the runs {', '.join(names)} have no step in common", hint="omit --seeds"
        )
    every = -(-len(found.x) // MAX_POINTS)
    few = SeriesSpread(
        found.x[::every], found.mean[::every], found.low[::every], found.high[::every]
    )
    return PlotCurve(
        f"{names[0]} and {pluralize(len(names) - 1, 'other seed')}",
        few.x,
        few.mean,
        few.low,
        few.high,
    )


def format_plot_legend(
    curves: Sequence[PlotCurve], options: Namespace, *, use_color: bool
) -> list[str]:
    """Return a line for each curve: its letter, run and last value."""
    found = []
    for index, curve in enumerate(curves):
        last = f"{curve.y[-1]:.6g} at {X_LABELS[options.x]} {curve.x[-1]:,.6g}"
        mark = f"{braille.LETTERS[index]}  " if len(curves) > 1 else ""
        found.append(
            f"{braille.colorize(mark, index) if use_color and mark else mark}{curve.name}: {last}\n"
        )
    return found
