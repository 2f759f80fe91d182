"""The schedule of a run that is resumed or forked with another length."""

from collections.abc import Sequence
from pathlib import Path

from titanrun.components.lr_schedulers.config import DecayScheduleConfig
from titanrun.config.override_parser import Override, parse_overrides
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.tree import to_plain_data
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.value_sources import find_resolved_run, is_decided

STEPS: DataPath = ("training", "steps")
LENGTHS: tuple[DataPath, ...] = (STEPS, ("training", "tokens"), ("training", "epochs"))
HORIZON = "total_steps"
# fields of the schedule that follow from the length of the run unless they are written
FOLLOWING_FIELDS = ("warmup_steps", HORIZON)


def build_schedule_overrides(resolved_file: str, overrides: Sequence[str]) -> list[str]:
    """Return further overrides, by which the schedule follows the new length of a run.

    A resolved recipe has numbers where its recipe has `auto`: without them a run of more steps
    would train the new ones at the end of the schedule.

    Args:
        resolved_file: The resolved recipe. Its run directory knows which values were written.
        overrides: The overrides on the command line.

    Raises:
        ProblemsFound: The schedule is written, and ends before the run.
    """
    try:
        changes = parse_overrides(overrides)
    except ProblemsFound:
        # reported with the whole recipe
        return []
    if not any(change.path in LENGTHS for change in changes):
        return []
    run = load_resolved(Path(resolved_file))
    free = [
        name
        for name in FOLLOWING_FIELDS
        if hasattr(run.lr_scheduler, name) and not is_overridden(("lr_scheduler", name), changes)
    ]
    folder = find_resolved_run(Path(resolved_file))
    followed = [
        name for name in free if folder is not None and is_decided(folder, f"lr_scheduler.{name}")
    ]
    if HORIZON in free and HORIZON not in followed:
        check_written_horizon(run, changes)
    return [f"lr_scheduler.{name}=auto" for name in followed]


def is_overridden(path: DataPath, changes: Sequence[Override]) -> bool:
    """Return whether an override sets the field at a path, or a section around it."""
    return any(path[: len(change.path)] == change.path for change in changes)


def check_written_horizon(run: Recipe, changes: Sequence[Override]) -> None:
    """Raise ProblemsFound if the new steps reach beyond a written horizon of the schedule."""
    schedule = run.lr_scheduler
    change = next((change for change in changes if change.path == STEPS), None)
    steps = None if change is None or change.value is None else to_plain_data(change.value)
    if (
        change is None
        or not isinstance(steps, int)
        or not isinstance(schedule, DecayScheduleConfig)
        or not isinstance(schedule.total_steps, int)
        or schedule.total_steps >= steps
        or schedule.is_flat()
    ):
        return
    message = (
        f"the schedule is written to end at step {schedule.total_steps}, but the run at {steps}: "
        f"should it end later, or the learning rate stay at {schedule.min_lr_factor:g} of its peak?"
    )
    hint = (
        f"add lr_scheduler.{HORIZON}={steps} to end with the run, "
        f"or lr_scheduler.{HORIZON}={schedule.total_steps} to keep the schedule"
    )
    raise ProblemsFound(
        [Problem("conflict", message, ("lr_scheduler", HORIZON), change.origin, hint=hint)]
    )
