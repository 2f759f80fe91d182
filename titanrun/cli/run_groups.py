"""Folders that hold several runs: the stages of a recipe, a sweep, or all runs."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from titanrun.cli.run_argument import (
    MAX_LISTED,
    build_run_folder_error,
    describe_run,
    find_run,
    is_path,
    sort_newest_first,
)
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.resolving.multi_stage import is_multi_stage_folder
from titanrun.recipe.rundir.run_files import RESOLVED, RUN_JSON
from titanrun.runs.run_state import ACTIVE_STATES, get_host_info, get_run_state
from titanrun.runs.run_summary import RunSummary, load_run_summary


def load_group(named: str) -> list[RunSummary]:
    """Return the runs in a folder that is no run itself, the newest first; else none."""
    if is_storage_path(named) or not is_path(named):
        return []
    folder = Path(named)
    if any((folder / name).exists() for name in (RUN_JSON, RESOLVED)):
        return []
    found = [load_run_summary(file.parent) for file in folder.glob(f"*/{RUN_JSON}")]
    return sort_newest_first(found)


def find_running_stage(named: str) -> str:
    """Return the stage that trains now if a word is the folder of the stages of a recipe.

    Another word is returned unchanged.

    Raises:
        ProblemsFound: no stage trains.
    """
    if is_storage_path(named) or not is_multi_stage_folder(Path(named)):
        return named
    here, stages = get_host_info(), load_group(named)
    for summary in stages:
        if get_run_state(summary, here) in ACTIVE_STATES:
            return summary.run
    raise problem_error(
        "usage",
        f"no stage in '{named}' is running:",
        listed=map(describe_run, stages),
        hint=f"train those that are left: titanrun resume {named}",
    )


def find_single_runs(
    command: str,
    named: Sequence[str],
    *,
    takes_many: bool = False,
    find: Callable[[str], str] = find_run,
) -> list[str]:
    """Return the folder of each run, as find_run does.

    Args:
        command: words of the command, for its line in the help.
        named: what the command line says.
        takes_many: whether the command takes any number of runs.
        find: what finds the folder of a run.

    Raises:
        ProblemsFound: a word names a folder of runs, which are listed.
    """
    found = [find(word) for word in named]
    check_no_groups(command, found, takes_many=takes_many)
    return found


def check_no_groups(
    command: str, named: Sequence[str], *, takes_many: bool = False, takes_stages: bool = False
) -> None:
    """Raise a problem that lists the runs of a folder that is none itself.

    With `takes_stages` the command takes the folder of the stages of a recipe as a whole.
    """
    groups = {
        word: []
        if takes_stages and not is_storage_path(word) and is_multi_stage_folder(Path(word))
        else load_group(word)
        for word in named
    }
    first = next((word for word in named if groups[word]), None)
    if first is not None:
        raise build_group_error(command, first, groups, takes_many=takes_many)


def build_group_error(
    command: str, group: str, groups: dict[str, list[RunSummary]], *, takes_many: bool
) -> ProblemsFound:
    """Build the problem of a folder of runs, with the command for the runs in the folders."""
    words: list[str] = []
    for run, summaries in groups.items():
        inside = [summary.run for summary in summaries] or [run]
        # the oldest first, as they were trained
        words += inside[:MAX_LISTED][::-1] if takes_many else inside[:1]
    line = shlex.join(
        ["titanrun", *command.split(), *(dict.fromkeys(words) if takes_many else words)]
    )
    which = "the runs" if takes_many else "one of them"
    return build_run_folder_error(group, groups[group], hint=f"name {which}: {line}")
