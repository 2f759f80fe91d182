"""Rules about the run length and the learning-rate schedule."""

from collections.abc import Iterator

from titanrun.components.lr_schedulers.config import (
    ConstantScheduleConfig,
    DecayScheduleConfig,
    LRSchedulerConfig,
    WarmupScheduleConfig,
)
from titanrun.components.optimizers.config import ScheduleFreeAdamWConfig
from titanrun.config.pluralize import pluralize
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.run_length import (
    FIELDS_FROM_STEPS,
    LENGTH_FIELDS,
    compute_warmup_steps,
)
from titanrun.recipe.rules.registry import RuleViolation, rule


@rule("one-length")
def run_has_one_length(run: Recipe) -> Iterator[RuleViolation]:
    """Require a single run length: training.steps, training.tokens or training.epochs.

    Keep one of them. The log prints the others when the run starts.
    """
    written = [name for name in LENGTH_FIELDS if getattr(run.training, name) is not None]
    if len(written) > 1:
        names = [f"training.{name}" for name in written]
        yield RuleViolation(
            f"more than one run length: {format_word_list(names, conjunction='and')}",
            tuple(("training", name) for name in reversed(written)),
            hint="keep one of them",
        )


@rule("null-follows-epochs")
def null_follows_epochs(run: Recipe) -> Iterator[RuleViolation]:
    """Require training.epochs if a number of steps is null.

    If training.epochs is the length, the data decides the number of steps, and null stands for it.
    Without epochs null has no meaning: use a number or `auto`.
    """
    if run.training.epochs is not None:
        return
    for section, name in (("training", "steps"), *FIELDS_FROM_STEPS):
        config = getattr(run, section)
        if name in type(config).model_fields and getattr(config, name) is None:
            yield RuleViolation(
                f"{format_path((section, name))} is null, which needs training.epochs",
                ((section, name), ("training", "epochs")),
                hint="use a number or auto",
            )


@rule("epochs-need-repeat")
def epochs_need_repeat(run: Recipe) -> Iterator[RuleViolation]:
    """Require repeat for more than one epoch.

    A dataset with repeat false is read once, so that a run of several epochs would stop after the
    first. Remove repeat, or use one epoch.
    """
    if (run.training.epochs or 1) > 1 and not run.training.dataset.repeat:
        yield RuleViolation(
            f"{run.training.epochs} epochs need to repeat the data, but repeat is false",
            (("training", "dataset", "repeat"), ("training", "epochs")),
            hint="remove repeat, or use epochs: 1",
        )


@rule("one-warmup")
def schedule_has_one_warmup(run: Recipe) -> Iterator[RuleViolation]:
    """Require a single warmup: lr_scheduler.warmup_steps or lr_scheduler.warmup_ratio.

    Keep one of them. Of two in different files, or in a file and on the command line, the one
    nearest the command line counts.
    """
    schedule, steps = run.lr_scheduler, run.training.steps
    if (
        not isinstance(schedule, WarmupScheduleConfig)
        or schedule.warmup_ratio is None
        or not isinstance(steps, int)
        or not isinstance(schedule.warmup_steps, int)
    ):
        return
    meant = compute_warmup_steps(schedule.warmup_ratio, steps)
    if schedule.warmup_steps != meant:
        yield RuleViolation(
            f"warmup_steps is {schedule.warmup_steps}, but warmup_ratio "
            f"{schedule.warmup_ratio:g} of {pluralize(steps, 'step')} is {meant}",
            (("lr_scheduler", "warmup_ratio"), ("lr_scheduler", "warmup_steps")),
            hint="keep one of them",
        )


@rule("warmup-within-run")
def warmup_within_run(run: Recipe) -> Iterator[RuleViolation]:
    """Require the warmup to fit into the run.

    A warmup longer than the run never reaches the peak learning rate. Shorten it, or use `auto`. If
    the length is in epochs, this is checked once the dataset is loaded. If training.steps is an
    override and the warmup is not, the warmup becomes `auto`, with a warning.
    """
    schedule, steps = run.lr_scheduler, run.training.steps
    if (
        not isinstance(schedule, WarmupScheduleConfig)
        or not isinstance(steps, int)
        or not isinstance(schedule.warmup_steps, int)
    ):
        return
    if schedule.warmup_steps > steps:
        yield RuleViolation(
            f"a warmup of {pluralize(schedule.warmup_steps, 'step')} exceeds the run "
            f"length of {steps}",
            (("lr_scheduler", "warmup_steps"), ("training", "steps")),
            hint=f"use a warmup_steps of at most {steps}, or auto",
        )


@rule("schedule-covers-run")
def schedule_covers_run(run: Recipe) -> Iterator[RuleViolation]:
    """Require lr_scheduler.total_steps to cover the whole run.

    After total_steps the learning rate stays at its minimum. Use `auto` to follow training.steps.
    """
    schedule, steps = run.lr_scheduler, run.training.steps
    if (
        not isinstance(schedule, DecayScheduleConfig)
        or not isinstance(steps, int)
        or not isinstance(schedule.total_steps, int)
    ):
        return
    if schedule.total_steps < steps and not schedule.is_flat():
        yield RuleViolation(
            f"the schedule ends at step {schedule.total_steps}, but the run at {steps}: "
            f"the learning rate stays at {schedule.min_lr_factor} of its peak",
            (("lr_scheduler", "total_steps"), ("training", "steps")),
            hint="use auto to follow training.steps",
            severity="warning",
        )


@rule("schedule-free-stays-high")
def schedule_free_stays_high(run: Recipe) -> Iterator[RuleViolation]:
    """Require the constant schedule for schedule_free_adamw.

    Schedule-free AdamW averages the weights instead of decaying the learning rate. With a decaying
    schedule the last steps count for little. Use the constant schedule, which warms up and stays at
    its peak.
    """
    if isinstance(run.optimizer, ScheduleFreeAdamWConfig) and has_decay(run.lr_scheduler):
        yield RuleViolation(
            "schedule_free_adamw averages weights and needs no learning-rate decay",
            (("optimizer", "name"), ("lr_scheduler", "name")),
            hint="use lr_scheduler: constant",
            severity="warning",
        )


def has_decay(schedule: LRSchedulerConfig) -> bool:
    """Return whether a schedule decays from its peak."""
    return not isinstance(schedule, ConstantScheduleConfig) and not (
        isinstance(schedule, DecayScheduleConfig) and schedule.is_flat()
    )
