"""Runs that the command line names without their folder."""

import time
from datetime import datetime
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import find_closest
from titanrun.launch.launch_env import get_environment
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.rundir.run_files import RUNS
from titanrun.runs.known_runs import find_known_runs
from titanrun.runs.run_index import load_run_summaries
from titanrun.runs.run_state import ACTIVE_STATES, get_host_info, get_run_state
from titanrun.runs.run_summary import RunSummary, load_run_summary

HOUR, DAY = 3600, 86400
# a run in one of these states has no more steps to train
ENDED = "finished"


def find_run(named: str, *, wants_unfinished: bool = False) -> str:
    """Return the folder of the run that has a name; a path is returned unchanged.

    The run is in runs/, or else in the index of the user's runs. The folder is told on stderr.

    Args:
        named: what the command line says.
        wants_unfinished: of several runs, the only one that is not finished is meant.

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
    unfinished = [summary for summary in found if summary.state != ENDED]
    if wants_unfinished and len(unfinished) == 1:
        found = unfinished
    if len(found) > 1:
        lines = "\n".join(describe_run(summary) for summary in sort_newest_first(found))
        raise problem_error(
            "usage",
            f"{len(found)} runs have the name '{named}':\n{lines}",
            hint="name the folder of one of them",
        )
    if not found:
        raise unknown_run_error(named, [summary.name for summary in summaries if summary.name])
    log_line(f"run: {found[0].run}")
    return found[0].run


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
