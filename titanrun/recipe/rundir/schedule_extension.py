"""The schedule of a run that is resumed or forked with another length."""

from collections.abc import Sequence
from pathlib import Path

from titanrun.components.lr_schedulers.config import DecayScheduleConfig
from titanrun.config.base import change_fields
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
    if not changes_length(changes):
        return []
    return [
        f"lr_scheduler.{name}=auto" for name in find_followed_fields(Path(resolved_file), changes)
    ]


def changes_length(changes: Sequence[Override]) -> bool:
    """Return whether an override sets the length of the run."""
    return any(change.path in LENGTHS for change in changes)


def find_followed_fields(
    resolved_file: Path, changes: Sequence[Override], *, stage: str | None = None
) -> list[str]:
    """Return the fields of the schedule that follow the new length of the run.

    `stage` is the id of the stage, where a recipe with stages is resumed as a whole.

    Raises:
        ProblemsFound: The schedule is written, and ends before the run.
    """
    run = load_resolved(resolved_file)
    free = [
        name
        for name in FOLLOWING_FIELDS
        if hasattr(run.lr_scheduler, name) and not is_overridden(("lr_scheduler", name), changes)
    ]
    folder = find_resolved_run(resolved_file)
    followed = [
        name for name in free if folder is not None and is_decided(folder, f"lr_scheduler.{name}")
    ]
    if HORIZON in free and HORIZON not in followed:
        check_written_horizon(run, changes, place=resolved_file, stage=stage)
    return followed


def is_overridden(path: DataPath, changes: Sequence[Override]) -> bool:
    """Return whether an override sets the field at a path, or a section around it."""
    return any(path[: len(change.path)] == change.path for change in changes)


def check_written_horizon(
    run: Recipe, changes: Sequence[Override], *, place: Path, stage: str | None = None
) -> None:
    """Raise ProblemsFound if further steps would train at a learning rate of 0.

    That is so where the new length reaches beyond a written horizon of the schedule, unless its
    floor is above 0. `place` is the resolved recipe, `stage` as for `find_followed_fields`.
    """
    schedule = run.lr_scheduler
    change = next((change for change in changes if change.path == STEPS), None)
    steps = None if change is None or change.value is None else to_plain_data(change.value)
    if (
        change is None
        or not isinstance(steps, int)
        or not isinstance(schedule, DecayScheduleConfig)
        or not isinstance(schedule.total_steps, int)
        or schedule.total_steps >= steps
        or schedule.min_lr_factor > 0
        or schedule.is_flat()
        or (isinstance(run.training.steps, int) and steps <= run.training.steps)
    ):
        return
    idle = format_idle_steps(run, schedule.total_steps, steps)
    raise ProblemsFound(
        [
            Problem(
                "conflict",
                idle if stage is None else f"stage {stage}: {idle}",
                ("lr_scheduler", HORIZON),
                change.origin,
                hint=format_ways_on(run, schedule, steps, place, stage),
                rule="schedule-ended",
            )
        ]
    )


def format_idle_steps(run: Recipe, horizon: int, steps: int) -> str:
    """Format how many of the further steps come after the horizon of the schedule."""
    done = run.training.steps if isinstance(run.training.steps, int) else 0
    further, idle = steps - done, steps - max(done, horizon)
    count = f"all {further}" if idle == further else f"{idle} of the {further}"
    ended = "ended" if horizon <= done else "ends"
    return f"{count} further steps would train at lr 0: the schedule {ended} at step {horizon}"


def format_ways_on(
    run: Recipe, schedule: DecayScheduleConfig, steps: int, place: Path, stage: str | None
) -> str:
    """Format the commands that go on: with a longer schedule, or with a new one."""
    folder = find_resolved_run(place) or place.parent
    if folder.is_absolute() and folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    longer = change_fields(schedule, total_steps=steps)
    # the factor of a step is asked for by its number from 0
    done = run.training.steps if isinstance(run.training.steps, int) else 0
    lr = getattr(run.optimizer, "lr", 1.0) * longer.load_builder()(longer).factor(done)
    whole, prefix = (folder, "") if stage is None else (folder.parent, f"stages.{stage}.")
    return (
        f"titanrun resume {whole} {prefix}training.steps={steps} "
        f"{prefix}lr_scheduler.{HORIZON}={steps} stretches "
        f"the schedule (lr at step {done + 1}: {lr:.3g}), titanrun fork {folder} begins a new one"
    )
