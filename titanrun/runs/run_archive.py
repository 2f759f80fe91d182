"""Moves runs into the archive beside them, and back."""

from collections.abc import Sequence
from pathlib import Path

from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.recipe.resolving.multi_stage import is_multi_stage_folder
from titanrun.recipe.rundir.run_files import RUN_JSON
from titanrun.runs.run_index import ARCHIVE
from titanrun.runs.run_state import ACTIVE_STATES, get_host_info, get_run_state
from titanrun.runs.run_summary import load_run_summary


def archive_run_folders(folders: Sequence[Path], *, is_restored: bool = False) -> list[Path]:
    """Move run directories into the archive, or back, and return where they are then.

    Raises:
        ProblemsFound: One of them may be running, or its target is occupied; none is moved.
    """
    check_runs_not_in_use(folders)
    targets = [get_archive_target(folder, is_restored=is_restored) for folder in folders]
    for folder, target in zip(folders, targets, strict=True):
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
    return targets


def list_runs_within(folder: Path) -> list[Path]:
    """Return a run directory itself, or the runs of the stages of a recipe in a folder."""
    if not is_multi_stage_folder(folder):
        return [folder]
    return sorted(file.parent for file in folder.glob(f"*/{RUN_JSON}"))


def get_archive_target(folder: Path, *, is_restored: bool) -> Path:
    """Return the target of a move. Raise ProblemsFound if it is already there or occupied."""
    if is_restored == (folder.parent.name != ARCHIVE):
        raise problem_error(
            "usage",
            f"'{folder}' is {'not ' if is_restored else ''}in the archive",
            hint="run titanrun runs ls --archived to list the archived runs",
        )
    target = (
        folder.parent.parent / folder.name if is_restored else folder.parent / ARCHIVE / folder.name
    )
    if target.exists():
        raise problem_error(
            "file", f"'{target}' exists and is never overwritten", hint="rename one of the two"
        )
    return target


def check_runs_not_in_use(folders: Sequence[Path]) -> None:
    """Raise a problem if one of the runs may be running; then none of them is changed.

    A stale run may be alive on another machine. The folder of the stages of a recipe is in use if
    one of them is.
    """
    here, runs = get_host_info(), [run for folder in folders for run in list_runs_within(folder)]
    states = [get_run_state(load_run_summary(run), here) for run in runs]
    where = {"stale": " on the machine where it trains"}
    alive = [
        Problem(
            "conflict",
            f"'{run}' is {state}",
            rule="run-in-use",
            hint=f"stop it first{where.get(state, '')}: titanrun stop {run} --wait",
        )
        for run, state in zip(runs, states, strict=True)
        if state in (*ACTIVE_STATES, "stale")
    ]
    if alive:
        raise ProblemsFound(alive)
