"""Rules about the length of the run and the learning-rate schedule."""

from collections.abc import Iterator

from titanrun.components.optimizers.config import ScheduleFreeAdamWConfig
from titanrun.components.schedules.config import (
    ConstantConfig,
    DecayingConfig,
    ScheduleConfig,
    WarmedConfig,
)
from titanrun.config.counted import counted
from titanrun.config.suggest import listing
from titanrun.config.tree import path_text
from titanrun.recipe.length import FOLLOW_STEPS, LENGTHS
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("one-length")
def one_length(run: Recipe) -> Iterator[Finding]:
    """A run has one length: training.steps, training.tokens or training.epochs. Keep one; the start of the run prints the others."""
    written = [name for name in LENGTHS if getattr(run.training, name) is not None]
    if len(written) > 1:
        yield Finding(
            f"the run has two lengths: {listing([f'training.{name}' for name in written], last='and')}",
            tuple(("training", name) for name in reversed(written)),
            help="keep one of them",
        )


@rule("null-follows-epochs")
def null_follows_epochs(run: Recipe) -> Iterator[Finding]:
    """Where training.epochs is the length, only the data decides how many steps that is, and null stands in their place. Without
    epochs there is nothing that null could follow: write a number or `auto`."""
    if run.training.epochs is not None:
        return
    for section, name in (("training", "steps"), *FOLLOW_STEPS):
        config = getattr(run, section)
        if name in type(config).model_fields and getattr(config, name) is None:
            yield Finding(
                f"{path_text((section, name))} is null, which stands for what the epochs come to, and the run has no training.epochs",
                ((section, name), ("training", "epochs")),
                help="write a number, or auto",
            )


@rule("epochs-need-repeat")
def epochs_need_repeat(run: Recipe) -> Iterator[Finding]:
    """A dataset with repeat false is read once, so a run of several epochs would stop after the first. Remove repeat, or ask for one
    epoch."""
    if (run.training.epochs or 1) > 1 and not run.training.dataset.repeat:
        yield Finding(
            f"{run.training.epochs} epochs read the data again and again, and its repeat is false",
            (("training", "dataset", "repeat"), ("training", "epochs")),
            help="remove repeat, or write epochs: 1",
        )


@rule("warmup-within-run")
def warmup_within_run(run: Recipe) -> Iterator[Finding]:
    """A warmup longer than the run never reaches the peak learning rate. Shorten it, or leave it `auto`. Where epochs are the length,
    this is checked when the data is open."""
    schedule, steps = run.lr_scheduler, run.training.steps
    if (
        not isinstance(schedule, WarmedConfig)
        or not isinstance(steps, int)
        or not isinstance(schedule.warmup_steps, int)
    ):
        return
    if schedule.warmup_steps > steps:
        yield Finding(
            f"a warmup of {counted(schedule.warmup_steps, 'step')} is longer than the run of {steps}",
            (("lr_scheduler", "warmup_steps"), ("training", "steps")),
            help=f"use a warmup_steps of at most {steps}, or auto",
        )


@rule("schedule-covers-run")
def schedule_covers_run(run: Recipe) -> Iterator[Finding]:
    """Beyond lr_scheduler.total_steps the learning rate stays at its floor. Leave it `auto` to follow training.steps."""
    schedule, steps = run.lr_scheduler, run.training.steps
    if (
        not isinstance(schedule, DecayingConfig)
        or not isinstance(steps, int)
        or not isinstance(schedule.total_steps, int)
    ):
        return
    if schedule.total_steps < steps and not schedule.is_flat():
        yield Finding(
            f"the schedule ends at step {schedule.total_steps}, the run at {steps}: "
            f"the rest trains at {schedule.min_lr_factor} of the peak",
            (("lr_scheduler", "total_steps"), ("training", "steps")),
            help="use auto, so that the schedule follows the run",
            severity="warning",
        )


@rule("schedule-free-stays-high")
def schedule_free_stays_high(run: Recipe) -> Iterator[Finding]:
    """Schedule-free AdamW averages its steps in the place of a decay: a schedule that decays too lets the last steps count for little.
    Use the constant schedule, which warms up and stays at its peak."""
    if isinstance(run.optimizer, ScheduleFreeAdamWConfig) and decays(run.lr_scheduler):
        yield Finding(
            "the schedule lowers the learning rate, and schedule_free_adamw averages the weights instead",
            (("optimizer", "name"), ("lr_scheduler", "name")),
            help="use lr_scheduler: constant",
            severity="warning",
        )


def decays(schedule: ScheduleConfig) -> bool:
    """Whether a schedule comes down from its peak."""
    return not isinstance(schedule, ConstantConfig) and not (
        isinstance(schedule, DecayingConfig) and schedule.is_flat()
    )
