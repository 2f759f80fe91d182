"""Rules about the learning-rate schedule."""

from collections.abc import Iterator

from titanrun.components.schedules.config import WarmupStableDecayConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("warmup-within-run")
def warmup_within_run(run: Recipe) -> Iterator[Finding]:
    """A warmup longer than the run never reaches the peak learning rate. Shorten it, or leave it `auto`."""
    schedule = run.lr_scheduler
    if isinstance(schedule, WarmupStableDecayConfig) and int(schedule.warmup_steps) > run.training.steps:
        yield Finding(
            f"a warmup of {schedule.warmup_steps} steps is longer than the run of {run.training.steps}",
            (("lr_scheduler", "warmup_steps"), ("training", "steps")),
            help=f"use at most {run.training.steps}, or auto",
        )


@rule("schedule-covers-run")
def schedule_covers_run(run: Recipe) -> Iterator[Finding]:
    """Beyond lr_scheduler.total_steps the learning rate stays at its floor. Leave it `auto` to follow training.steps."""
    schedule = run.lr_scheduler
    if isinstance(schedule, WarmupStableDecayConfig) and int(schedule.total_steps) < run.training.steps and schedule.decay_ratio != 0:
        ends = f"the schedule ends at step {schedule.total_steps}, the run at {run.training.steps}"
        yield Finding(
            f"{ends}: the rest trains at {schedule.min_lr_factor} of the peak",
            (("lr_scheduler", "total_steps"), ("training", "steps")),
            help="use auto, so that the schedule follows the run",
            severity="warning",
        )
