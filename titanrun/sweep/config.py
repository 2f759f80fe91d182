"""Settings of a sweep file other than the values to try."""

from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Interval
from pydantic import model_validator

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import bookkeeping, component
from titanrun.config.types import (
    Argument,
    Line,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Text,
)


class EarlyStoppingConfig(ComponentConfig):
    """Early stopping of runs that fall behind, which frees the machine for better runs."""

    slot: ClassVar = "early_stopping"
    is_slot: ClassVar = True
    is_pruner: ClassVar = False
    """Whether a pruner of Optuna decides, which needs a search."""
    name: str = bookkeeping()

    @property
    def earliest_step(self) -> int:
        """First step at which a run may be stopped."""
        return 1

    @property
    def needs_num_steps(self) -> bool:
        """Whether the rule must know the number of steps of all runs."""
        return False


class SteppedConfig(EarlyStoppingConfig):
    """Early stopping that begins at a step."""

    first_step: PositiveInt = bookkeeping(10, unit="steps")
    """First step at which a run may be stopped."""

    @property
    def earliest_step(self) -> int:
        """First step at which a run may be stopped."""
        return self.first_step


class SteppedPrunerConfig(SteppedConfig):
    """Early stopping by a pruner of Optuna, which judges each logged value of a search's runs."""

    is_pruner: ClassVar = True
    extra: ClassVar = "search"
    package: ClassVar = "optuna"


class MedianConfig(SteppedConfig):
    """Stop a run whose best value so far is worse than the median of the others' best values.

    The values of three or more other runs at the same step are compared.
    """

    name: Literal["median"] = bookkeeping("median")
    builds: ClassVar = "titanrun.sweep.early_stopping:judge_by_median"


class HalvingConfig(SteppedConfig):
    """Continue the best of `factor` runs at `first_step`, and at `factor` times the step before.

    Successive halving (https://arxiv.org/abs/1810.05934) without waiting for the slowest. A run is
    judged once at each of these steps, when it reaches it: runs that start later never end it
    there.
    """

    name: Literal["halving"] = bookkeeping("halving")
    builds: ClassVar = "titanrun.sweep.early_stopping:judge_by_rungs"
    factor: PositiveInt | None = bookkeeping(None, examples=[3])
    """One of this many runs continues, the best one. The default is 3."""


class AshaConfig(SteppedPrunerConfig):
    """Optuna's SuccessiveHalvingPruner: the best of `factor` runs continue at growing steps.

    A run is judged by the value at its first logged step from `first_step`, `first_step` x
    `factor`, and so on, against the runs that got there before it. The first run always continues.
    """

    name: Literal["asha"] = bookkeeping("asha")
    builds: ClassVar = "titanrun.sweep.search_pruners:build_asha_pruner"
    factor: Annotated[int, Ge(2)] = bookkeeping(4)
    """One of this many runs continues (`reduction_factor`)."""


class HyperbandConfig(SteppedPrunerConfig):
    """Optuna's HyperbandPruner: successive halving in groups of runs that begin it at other steps.

    The number of groups follows from `first_step`, `factor` and `training.steps`
    (`max_resource`). The group of a run depends on its trial's number and the sweep's folder.
    """

    name: Literal["hyperband"] = bookkeeping("hyperband")
    builds: ClassVar = "titanrun.sweep.search_pruners:build_hyperband_pruner"
    factor: Annotated[int, Ge(2)] = bookkeeping(3)
    """One of this many runs of a group continues (`reduction_factor`)."""

    @property
    def needs_num_steps(self) -> bool:
        """Whether the rule must know the number of steps of all runs."""
        return True


class PercentileConfig(SteppedPrunerConfig):
    """Optuna's PercentilePruner: a run continues while its best value is among the best.

    It is compared with the values of the finished runs at the same step.
    """

    name: Literal["percentile"] = bookkeeping("percentile")
    builds: ClassVar = "titanrun.sweep.search_pruners:build_percentile_pruner"
    percentile: Annotated[float, Interval(ge=0, le=100)] = bookkeeping(50.0, unit="%")
    """Share of the values that are good enough. 50 is the median."""
    startup: NonNegativeInt = bookkeeping(5)
    """Finished runs before any run is stopped (`n_startup_trials`)."""


class StagnationConfig(EarlyStoppingConfig):
    """Optuna's PatientPruner: stop a run that got worse, or let another rule decide on it.

    A run got worse if all of its last `patience` + 1 logged values are worse than the best one
    before them, by more than `min_delta`.
    """

    name: Literal["patient"] = bookkeeping("patient")
    is_pruner: ClassVar = True
    extra: ClassVar = "search"
    package: ClassVar = "optuna"
    builds: ClassVar = "titanrun.sweep.search_pruners:build_stagnation_pruner"
    patience: NonNegativeInt = bookkeeping(examples=[3])
    """Number of logged values without improvement that are tolerated."""
    min_delta: NonNegativeFloat = bookkeeping(0.0)
    """How much worse the values must be."""
    rule: EarlyStoppingConfig | None = component(None)
    """Rule that decides on runs that got worse: hyperband, asha or percentile. Null stops all of
    them.
    """

    @property
    def earliest_step(self) -> int:
        """First step at which a run may be stopped."""
        return 1 if self.rule is None else self.rule.earliest_step

    @property
    def needs_num_steps(self) -> bool:
        """Whether the rule must know the number of steps of all runs."""
        return self.rule is not None and self.rule.needs_num_steps

    @model_validator(mode="after")
    def check_rule(self) -> Self:
        """Refuse rules that are not pruners, and a second `patient`."""
        if self.rule is not None and (not self.rule.is_pruner or self.rule.name == "patient"):
            raise conflict_error(
                f"patient cannot wrap {self.rule.name}",
                "rule",
                hint="use rule: hyperband, asha or percentile, or remove it",
            )
        return self


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
