"""Runs that the command line names without their folder."""

import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from titanrun.components.checkpoints.spec.manifest import is_checkpoint
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    is_storage_path,
    parse_storage_path,
)
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import find_closest
from titanrun.launch.launch_env import get_environment
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.rundir.checkpoint_lookup import (
    get_checkpoints_by_step,
    list_stage_runs,
    select_checkpoint,
)
from titanrun.recipe.rundir.run_files import RUNS, STATUS
from titanrun.runs.known_runs import find_known_runs
from titanrun.runs.log_problems import collect_log_problems
from titanrun.runs.run_index import load_run_summaries
from titanrun.runs.run_state import ACTIVE_STATES, get_host_info, get_run_state
from titanrun.runs.run_summary import RunSummary, load_run_summary

HOUR, DAY = 3600, 86400
# a run in one of these states has no more steps to train
ENDED = "finished"
ERROR_LEVELS = ("error", "critical")
SAVE_NOW = "wait for its first checkpoint, or save one: titanrun checkpoint now RUN"
NO_CHECKPOINT_HINTS = {
    ENDED: "train with checkpoint.enable: true",
    **dict.fromkeys(ACTIVE_STATES, SAVE_NOW),
}


def find_run(named: str, *, wants: Literal["any", "unfinished", "checkpoint"] = "any") -> str:
    """Return the folder of the run that has a name; a path is returned unchanged.

    The run is in runs/, or else in the index of the user's runs. The folder is told on stderr.

    Args:
        named: what the command line says.
        wants: what the run is for: of several, the only one that is not finished, or that has a
            checkpoint, is meant.

    Raises:
        ProblemsFound: several runs have the name, or none.
    """
    if "/" in named or is_storage_path(named) or Path(named).exists():
        return named
    summaries = load_run_summaries(Path(RUNS)) if Path(RUNS).is_dir() else []
    found = [summary for summary in summaries if named in (summary.name, Path(summary.run).name)]
    if not found:
        known = find_known_runs(named, get_environment())
        found = [load_run_summary(run) for run in known]
    # a folder of that name is one run, however many recipes have the name
    found = [summary for summary in found if Path(summary.run).name == named] or found
    suited = [summary for summary in found if is_suited(summary, wants)]
    if len(suited) == 1 or (wants == "checkpoint" and suited):
        found = suited
    if len(found) > 1:
        lines = "\n".join(describe_run(summary) for summary in sort_newest_first(found))
        raise problem_error(
            "usage",
            f"{len(found)} runs have the name '{named}':\n{lines}",
            hint=f"name the folder of one of them, such as {sort_newest_first(found)[0].run}",
        )
    if not found:
        raise unknown_run_error(named, [summary.name for summary in summaries if summary.name])
    log_line(f"run: {found[0].run}")
    return found[0].run


def is_suited(summary: RunSummary, wants: str) -> bool:
    """Return whether a run can be what a command wants."""
    if wants == "checkpoint":
        run = Path(summary.run)
        return has_checkpoint(run) or bool(list_stage_runs(run))
    return wants == "unfinished" and summary.state != ENDED


def find_checkpoint(named: str) -> AnyPath:
    """Return the checkpoint, or the newest one of a run, that the command line names.

    Of several runs with a name, those without a checkpoint are not meant.

    Raises:
        ProblemsFound: several runs have the name, or there is no checkpoint, with the reason.
    """
    place = parse_storage_path(find_run(named, wants="checkpoint"))
    check_has_checkpoint(place)
    return select_checkpoint(place)


def check_has_checkpoint(place: AnyPath) -> None:
    """Raise a problem with the state of a run that has no checkpoint, and what ended it."""
    is_run = isinstance(place, Path) and (place / STATUS).is_file()
    if not is_run or has_checkpoint(place) or list_stage_runs(place):
        return
    summary = load_run_summary(Path(str(place)))
    state = get_run_state(summary, get_host_info())
    errors = [
        met.text for met in collect_log_problems(Path(str(place))) if met.level in ERROR_LEVELS
    ]
    reason = f": {errors[-1]}" if errors and state not in ACTIVE_STATES else ""
    raise problem_error(
        "checkpoint",
        f"run '{place}' has no checkpoint: {state} at step {summary.step}{reason}",
        hint=NO_CHECKPOINT_HINTS.get(state, "correct what ended it, and train again"),
    )


def has_checkpoint(run: AnyPath) -> bool:
    """Return whether a run directory has a complete checkpoint, true if that is unknown."""
    with suppress(ProblemsFound):
        return any(is_checkpoint(folder) for folder in get_checkpoints_by_step(run).values())
    return True  # its recipe cannot be read, which is told where it is used


def unknown_run_error(named: str, names: list[str]) -> ProblemsFound:
    """Build the problem of a word that is neither a path nor the name of a run.

    It suggests the run whose name is nearly the word, or begins with it.
    """
    begun = sorted({name for name in names if name.startswith(named)})
    nearest = begun[0] if begun else find_closest(named, names)
    if nearest is not None:
        return problem_error(
            "usage",
            f"no run in {RUNS}/ has the name '{named}'",
            hint=f"did you mean '{nearest}'?",
        )
    return problem_error(
        "usage",
        f"no run in {RUNS}/ has the name '{named}', and there is no such file or folder",
        hint=f"titanrun runs ls lists the runs in {RUNS}/, and titanrun runs ls out those in out/; "
        "a run of another user or machine is named by its folder, such as out/first",
    )


def sort_newest_first(found: list[RunSummary]) -> list[RunSummary]:
    """Return runs by the time of their start, the newest first."""
    return sorted(found, key=lambda summary: summary.started or "", reverse=True)


def describe_run(summary: RunSummary) -> str:
    """Return folder, state, step and age of a run in a line."""
    state = get_run_state(summary, get_host_info())
    steps = f"{summary.step} of {summary.steps}" if summary.steps else str(summary.step)
    words = [summary.run, state, f"step {steps}"]
    if summary.started is not None and state not in ACTIVE_STATES:
        age = time.time() - datetime.fromisoformat(summary.started).timestamp()
        words.append(f"started {format_age(age)} ago")
    return "  " + "  ".join(words)


def format_age(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    if seconds < HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} days"
