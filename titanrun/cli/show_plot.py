"""`titanrun show --plot lr_scheduler`: the learning rate over the steps of the run, in the terminal or as SVG."""

import sys
from pathlib import Path

from titanrun.cli.plots import braille, svg
from titanrun.cli.plots.axes import Curve
from titanrun.cli.terminal import columns
from titanrun.config.base import dump
from titanrun.config.problems import fail
from titanrun.recipe.recipe import Recipe

# more points than a wide screen has dots say nothing more
MOST_POINTS = 2000
# columns where the output is no terminal
PIPED = 80


def show_plot(run: Recipe, name: str, file: str) -> None:
    """Draw the schedule of a run into the terminal, or into `file`."""
    curve = learning_rate(run)
    if file:
        if Path(file).suffix != ".svg":
            raise fail(
                "usage", f"'{file}' is not an SVG file", help="name a file that ends in .svg"
            )
        Path(file).write_text(
            svg.plot([curve], title=f"{run.name}: {name}", x_label="step"), encoding="utf-8"
        )
        print(file)
        return
    sys.stdout.write(f"learning rate: {dump(run.lr_scheduler)['name']}, {len(curve.x):,} points\n")
    sys.stdout.write(braille.plot([curve], width=columns() or PIPED, x_label="step"))


def learning_rate(run: Recipe) -> Curve:
    """The learning rate of each step, counted from 1, of every n-th where there are many."""
    steps = run.training.steps
    if not isinstance(steps, int) or steps < 1:
        raise fail(
            "usage",
            "the run has no number of steps to plot",
            help="give training.steps; the length of an epoch is known with the data",
        )
    schedule = run.lr_scheduler.builder()(run.lr_scheduler)
    peak = getattr(run.optimizer, "lr", 1.0)
    shown = sorted({*range(0, steps, -(-steps // MOST_POINTS)), steps - 1})
    return Curve(
        "lr", [step + 1 for step in shown], [peak * schedule.factor(step) for step in shown]
    )
