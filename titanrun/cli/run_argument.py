"""Runs that the command line names without their folder."""

import time
from collections.abc import Sequence
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
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import find_closest
from titanrun.launch.launch_env import get_environment
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.reference.shipped_recipes import get_shipped_recipe
from titanrun.recipe.resolving.multi_stage import STAGES_FILE
from titanrun.recipe.rundir.checkpoint_lookup import (
    get_checkpoints_by_step,
    list_stage_runs,
    select_checkpoint,
)
from titanrun.recipe.rundir.run_files import RESOLVED, RUN_JSON, RUNS, STATUS
from titanrun.runs.known_runs import find_known_runs
from titanrun.runs.log_problems import collect_log_problems
from titanrun.runs.run_index import ARCHIVE, list_archives, load_run_summaries
from titanrun.runs.run_state import (
    ACTIVE_STATES,
    describe_run_state,
    get_host_info,
    get_run_state,
)
from titanrun.runs.run_summary import RunSummary, load_run_summary

# runs of a folder that a message lists
MAX_LISTED = 10
HOUR, DAY = 3600, 86400
# what a command does with a run: it reads it or changes it. Of several runs with the name, the only
# one that is not finished, which also is to be changed, or the only one with a checkpoint is meant
Purpose = Literal["any", "change", "unfinished", "checkpoint"]
CHANGES = ("change", "unfinished")
# a run in one of these states has no more steps to train
ENDED = "finished"
ERROR_LEVELS = ("error", "critical")
SAVE_NOW = "wait for its first checkpoint, or save one: titanrun checkpoint now RUN"
NO_CHECKPOINT_HINTS = {
    ENDED: "train with checkpoint.enable: true",
    **dict.fromkeys(ACTIVE_STATES, SAVE_NOW),
}


def find_run(named: str, *, wants: Purpose = "any") -> str:
    """Return the folder of the run that has a name; a path is returned unchanged.

    The run is in runs/. Only for commands that do not change it, it may also be elsewhere, in the
    index of the user's runs. The folder is told on stderr.

    Args:
        named: what the command line says.
        wants: what the run is for.

    Raises:
        ProblemsFound: several runs have the name, or none.
    """
    if is_path(named):
        check_not_archived(named)
        if wants != "any":
            check_is_single_run(named)
        return named
    summaries = load_run_summaries(Path(RUNS)) if Path(RUNS).is_dir() else []
    found = select_named(named, summaries)
    if not found:
        archived = load_archived_runs(named)
        if archived:
            raise archived_run_error(named, archived[-1].run)
        known = find_known_runs(named, get_environment())
        if known and wants in CHANGES:
            raise problem_error(
                "usage",
                f"no run in {RUNS}/ has the name '{named}'",
                hint=f"a run elsewhere has it, which is named by its folder: {known[0]}",
            )
        found = [load_run_summary(run) for run in known]
    if not found:
        raise unknown_run_error(named, [summary.name for summary in summaries if summary.name])
    return choose_run(named, found, wants)


def check_not_archived(named: str) -> None:
    """Raise a problem for the folder of a run that is in the archive beside it now."""
    if is_storage_path(named) or Path(named).exists():
        return
    archived = Path(named).parent / ARCHIVE / Path(named).name
    if archived.is_dir():
        raise archived_run_error(named, str(archived))


def archived_run_error(named: str, archived: str) -> ProblemsFound:
    """Build the problem of a run that is named as if it were not in the archive."""
    hint = f"name its folder, {archived}, or move it back: titanrun runs archive --restore"
    return problem_error("usage", f"the run '{named}' is archived", hint=f"{hint} {archived}")


def load_archived_runs(named: str) -> list[RunSummary]:
    """Return the archived runs in runs/ that have a name."""
    archives = list_archives(Path(RUNS)) if Path(RUNS).is_dir() else []
    return select_named(named, [one for folder in archives for one in load_run_summaries(folder)])


def find_archived_run(named: str) -> str:
    """Return the folder of the archived run that has a name; a path is returned unchanged.

    Raises:
        ProblemsFound: several archived runs have the name, or none.
    """
    if is_path(named):
        return named
    found = load_archived_runs(named)
    if not found:
        raise problem_error(
            "usage",
            f"no archived run in {RUNS}/ has the name '{named}'",
            hint="titanrun runs ls --archived lists them",
        )
    return choose_run(named, found, "change")


def find_run_or_recipe(named: str) -> str:
    """Return the folder of the run in runs/ that has a name; other words are returned unchanged.

    A shipped recipe of that name is meant before a run.

    Raises:
        ProblemsFound: several runs have the name, or only an archived run has it.
    """
    if is_path(named):
        check_not_archived(named)
        return named
    if not Path(RUNS).is_dir():
        return named
    with suppress(ProblemsFound):
        get_shipped_recipe(named)
        return named
    known = select_named(named, load_run_summaries(Path(RUNS))) or load_archived_runs(named)
    return find_run(named) if known else named


def is_path(named: str) -> bool:
    """Return whether a word of the command line is a path, not the name of a run."""
    return "/" in named or is_storage_path(named) or Path(named).exists()


def select_named(named: str, summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs whose name, or that of their folder, is a word."""
    return [summary for summary in summaries if named in (summary.name, Path(summary.run).name)]


def choose_run(named: str, found: list[RunSummary], wants: Purpose) -> str:
    """Return the folder of the run that is meant by a name that several runs may have.

    Raises:
        ProblemsFound: it may be several ones.
    """
    # a folder of that name is one run, however many recipes have the name
    found = [summary for summary in found if Path(summary.run).name == named] or found
    suited = [summary for summary in found if is_suited(summary, wants)]
    if len(suited) == 1 or (wants == "checkpoint" and suited):
        found = suited
    if len(found) > 1:
        raise problem_error(
            "usage",
            f"{len(found)} runs have the name '{named}':",
            hint=f"name the folder of one of them, such as {sort_newest_first(found)[0].run}",
            listed=map(describe_run, sort_newest_first(found)),
        )
    log_line(f"run: {found[0].run}")
    return found[0].run


def check_is_single_run(named: str) -> None:
    """Raise a problem that lists the runs in a folder that is none itself."""
    folder = Path(named)
    own_files = (RUN_JSON, RESOLVED, STAGES_FILE)
    if is_storage_path(named) or any((folder / name).exists() for name in own_files):
        return
    runs = [file.parent for file in folder.glob(f"*/{RUN_JSON}")]
    if not runs:
        return
    found = sort_newest_first([load_run_summary(run) for run in runs])
    raise build_run_folder_error(named, found, hint=f"name one of them, such as {found[0].run}")


def build_run_folder_error(named: str, runs: Sequence[RunSummary], *, hint: str) -> ProblemsFound:
    """Build the problem of a folder that holds these runs, and lists the first of them."""
    lines = [describe_run(summary) for summary in runs[:MAX_LISTED]]
    hidden = len(runs) - len(lines)
    lines += [f"... and {hidden:,} more"] if hidden else []
    message = f"'{named}' is a folder of {pluralize(len(runs), 'run')}, not one of them:"
    return problem_error("usage", message, hint=hint, listed=lines)


def is_suited(summary: RunSummary, wants: str) -> bool:
    """Return whether a run can be what a command wants."""
    if wants == "checkpoint":
        run = Path(summary.run)
        return has_checkpoint(run) or bool(list_stage_runs(run))
    return wants == "unfinished" and summary.state != ENDED


def find_checkpoint(named: str, *, takes_models: bool = False) -> AnyPath:
    """Return the checkpoint, or the newest one of a run, that the command line names.

    Of several runs with a name, those without a checkpoint are not meant. With `takes_models` the
    command takes folders of models, too, which its help says.

    Raises:
        ProblemsFound: several runs have the name, or there is no checkpoint, with the reason.
    """
    place = parse_storage_path(find_run(named, wants="checkpoint"))
    check_has_checkpoint(place)
    return select_checkpoint(place, takes_models=takes_models)


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
    told = describe_run_state(summary, state)
    raise problem_error(
        "checkpoint",
        f"run '{place}' has no checkpoint: {told} at step {summary.step}{reason}",
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
    words = [summary.run, describe_run_state(summary, state), f"step {steps}"]
    if summary.started is not None and state not in ACTIVE_STATES:
        age = time.time() - datetime.fromisoformat(summary.started).timestamp()
        words.append(f"started {format_age(age)} ago")
    return "  ".join(words)


def format_age(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    if seconds < HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} days"
