"""Settings of a sweep file other than the values to try."""

from typing import Literal

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component
from titanrun.config.types import Argument, Line, NonNegativeInt, PositiveInt, Text


class EarlyStoppingConfig(Config):
    """Early stopping of runs that fall behind, which frees the machine for better runs."""

    name: Literal["median", "halving"] = bookkeeping(examples=["median"])
    """`median`: stop a run if its best value so far is worse than the median of the best values of
    the other runs at the same step. `halving`: at `first_step`, and at each `factor` times the
    previous step, only the best of `factor` runs continue (successive halving,
    https://arxiv.org/abs/1810.05934, without waiting for the slowest). A run is judged once at
    each of these steps, when it reaches it: runs that start later never end it there.
    """

    first_step: PositiveInt = bookkeeping(10, unit="steps")
    """First step at which a run may be stopped."""

    factor: PositiveInt | None = bookkeeping(None, examples=[3])
    """For `halving`: one of this many runs continues, the best one. The default is 3."""


class SearchConfig(Config):
    """A search: values are drawn while it goes on, from what earlier trials have found."""

    sampler: Literal["tpe", "cmaes", "gp", "random", "qmc"] = bookkeeping("tpe")
    """How Optuna draws the values. `tpe`: more often where good trials lie (tree-structured Parzen
    estimator). `cmaes`: covariance matrix adaptation, for two or more numbers. `gp`: Gaussian
    process, for few and slow trials. `qmc`: evenly over the space (Sobol sequence). `random`.
    """

    count: PositiveInt = bookkeeping(examples=[40])
    """Number of trials, on all machines together."""

    seed: NonNegativeInt = bookkeeping(0)
    """Seed of the drawn values."""

    startup: PositiveInt | None = bookkeeping(None, examples=[20])
    """Finished trials before `tpe`, `cmaes` and `gp` stop drawing at random. The default is 10."""

    storage: Line | None = bookkeeping(None, examples=["/shared/optuna.journal"])
    """Journal file with all trials, which every machine of the search must see. The default is
    `optuna.journal` in the sweep's folder. `sqlite:///FILE` is a database for one machine.
    """


class SweepConfig(Config):
    """A sweep: a recipe, the values to try in it, and how its runs are started and compared."""

    version: Literal[1] = bookkeeping()
    """Version of this format."""

    recipe: Line = bookkeeping(examples=["llama3_debug.yaml"])
    """Recipe that every run changes, relative to the folder of the sweep file."""

    folder: Line | None = bookkeeping(None, examples=["runs/learning-rates"])
    """Parent folder of the run directories. The default is `runs/` plus the name of the
    sweep file.
    """

    overrides: tuple[Argument, ...] = bookkeeping((), examples=[["training.steps=200"]])
    """Overrides for all runs, as on the command line."""

    filters: tuple[Text, ...] = bookkeeping((), examples=[["optimizer.lr < 0.01"]])
    """Only points that satisfy all of these conditions are run: a path, one of <= >= == != < >, and
    a value or another path. Values are compared as `titanrun show` prints them: defaults, `auto`
    and units are resolved.
    """

    max_runs: PositiveInt | None = bookkeeping(None)
    """Maximum number of points to run, the first ones."""

    slots: PositiveInt = bookkeeping(1)
    """Number of runs that train on this machine at the same time."""

    metric: Text = bookkeeping("loss", examples=["validation/loss"])
    """Metric that ranks the runs, by its name in metrics.jsonl."""

    goal: Literal["min", "max"] = bookkeeping("min")
    """Whether the lowest or the highest value of the metric is best."""

    early_stopping: EarlyStoppingConfig | None = component(None)
    """Early stopping of runs that fall behind."""
