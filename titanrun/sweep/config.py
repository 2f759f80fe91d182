"""What a sweep file says beside the values it tries."""

from typing import Literal

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component
from titanrun.config.types import PositiveInt, Text


class EarlyStoppingConfig(Config):
    """Ends runs that fall behind before their last step, so that the better ones get the machine."""

    name: Literal["median", "halving"] = bookkeeping(examples=["median"])
    """`median`: a run ends where its best value so far is worse than the median of what the others had reached by the same step.
    `halving`: at `first_step`, and at each `factor` times the step before, only the best of `factor` runs go on
    (successive halving, https://arxiv.org/abs/1810.05934, without waiting for the slowest)."""

    first_step: PositiveInt = bookkeeping(10, unit="steps")
    """The first step at which a run may be ended."""

    factor: PositiveInt | None = bookkeeping(None, examples=[3])
    """For `halving`: of how many runs the best goes on; 3 where nothing is said."""


class SweepConfig(Config):
    """A sweep: a recipe, the values that are tried in it, and how the runs are started and judged."""

    version: Literal[1] = bookkeeping()
    """The version of this format."""

    recipe: Text = bookkeeping(examples=["llama3_debug.yaml"])
    """The recipe that every run changes, from the folder of the sweep file."""

    folder: Text | None = bookkeeping(None, examples=["runs/learning-rates"])
    """Where the run directories lie; `runs/` and the name of the sweep file where nothing is said."""

    overrides: tuple[Text, ...] = bookkeeping((), examples=[["training.steps=200"]])
    """Changes for all runs, as on the command line."""

    filters: tuple[Text, ...] = bookkeeping((), examples=[["optimizer.lr < 0.01"]])
    """Only points for which all of these hold are run: a path, one of <= >= == != < >, and a value or another path."""

    max_runs: PositiveInt | None = bookkeeping(None)
    """The first so many points only."""

    slots: PositiveInt = bookkeeping(1)
    """Runs that train on this machine at the same time."""

    metric: Text = bookkeeping("loss", examples=["validation/loss"])
    """The metric that says which run is best, by its name in metrics.jsonl."""

    goal: Literal["min", "max"] = bookkeeping("min")
    """Whether the lowest or the highest value of the metric is best."""

    early_stopping: EarlyStoppingConfig | None = component(None)
    """Whether runs that fall behind are ended early."""
