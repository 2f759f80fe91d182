"""`titanrun show --plot lr_scheduler`: plot the learning rate over the steps of the run.

The plot goes to the terminal, or to an SVG or PNG file.
"""

import sys
from pathlib import Path

from titanrun.cli.plot import check_plot_file, render_plot_file
from titanrun.cli.plots import braille
from titanrun.cli.plots.axes import PlotCurve
from titanrun.cli.terminal import get_terminal_width
from titanrun.config.base import dump_config
from titanrun.config.problems import problem_error
from titanrun.recipe.recipe import Recipe

# more points than a wide screen has dots add no information
MAX_POINTS = 2000
# columns if the output is not a terminal
PIPED_WIDTH = 80


LR_SCHEDULER = "lr_scheduler"


def check_plot_name(name: str) -> None:
    """Raise a usage problem for what cannot be plotted of a recipe."""
    if name == LR_SCHEDULER:
        return
    raise problem_error(
        "usage",
        f"--plot of a recipe shows {LR_SCHEDULER}, not '{name}'",
        hint=f"for a schedule over {name} steps, write --plot training.steps={name}"
        if name.isdecimal()
        else f"write --plot alone; titanrun plot RUN --metric {name} plots metrics of a run",
    )


def plot_lr_schedule(run: Recipe, name: str, file: str) -> None:
    """Plot the schedule of a run in the terminal, or into `file`."""
    curve = build_lr_curve(run)
    if file:
        check_plot_file(file)
        title = f"{run.name}: {name}"
        Path(file).write_bytes(
            render_plot_file(
                [curve],
                Path(file).suffix,
                title=title,
                x_label="step",
                x_scale="linear",
                y_scale="linear",
            )
        )
        print(file)
        return
    sys.stdout.write(
        f"learning rate: {dump_config(run.lr_scheduler)['name']}, {len(curve.x):,} points\n"
    )
    sys.stdout.write(
        braille.plot_braille([curve], width=get_terminal_width() or PIPED_WIDTH, x_label="step")
    )


def build_lr_curve(run: Recipe) -> PlotCurve:
    """Build the curve of the learning rate by step, counted from 1; every n-th of many steps."""
    steps = run.training.steps
    if not isinstance(steps, int) or steps < 1:
        raise problem_error(
            "usage",
            "the run does not set a number of steps to plot",
            hint="set training.steps; the length of an epoch depends on the data",
        )
    schedule = run.lr_scheduler.load_builder()(run.lr_scheduler)
    peak = getattr(run.optimizer, "lr", 1.0)
    shown = sorted({*range(0, steps, -(-steps // MAX_POINTS)), steps - 1})
    return PlotCurve(
        "lr", [step + 1 for step in shown], [peak * schedule.factor(step) for step in shown]
    )
