"""`titanrun checkpoint rm`: delete checkpoints of a run that are named by their steps."""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import PurePosixPath

from titanrun.cli.arguments import CommandParser
from titanrun.cli.checkpoint_manage import check_is_not_training
from titanrun.cli.messages import print_note
from titanrun.cli.run_argument import find_run
from titanrun.components.checkpoints.spec.commit import get_commit_strategy
from titanrun.components.checkpoints.spec.manifest import STEP_FOLDER
from titanrun.components.checkpoints.spec.retention import list_best_steps
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    get_file_size,
    parse_storage_path,
)
from titanrun.config.problems import problem_error
from titanrun.config.suggest import format_word_list
from titanrun.recipe.rundir.checkpoint_lookup import (
    get_checkpoints_by_step,
    load_manifests,
    select_checkpoint,
    to_absolute_path,
)

EXAMPLES = """  titanrun checkpoint rm runs/first 100 200  list what would be deleted
  titanrun checkpoint rm runs/first 100 200 --yes
  titanrun checkpoint rm runs/first/checkpoint/step-100 --yes"""
STEP_WORD = re.compile(r"(?:step-)?(0|[1-9][0-9]*)")
MIB = 1024**2


def remove_checkpoints(arguments: list[str]) -> int:
    """Delete the named checkpoints of a run; without --yes only list them."""
    options = parse_remove_options(arguments)
    place = parse_storage_path(find_run(options.run, wants="change").rstrip("/"))
    words = options.steps
    if STEP_FOLDER.fullmatch(place.name):
        words = [place.name, *words]
        place = place.parent
    known = get_checkpoints_by_step(place)
    if not known:
        select_checkpoint(place)  # raises the problem that says what the folder is
    chosen = choose_steps(place, words, known)
    check_is_not_training(place)
    remarks = describe_deletions(place, chosen)
    for step in chosen:
        size = sum(get_file_size(file) for file in known[step].iterdir() if file.is_file())
        remark = f"  {remarks[step]}" if step in remarks else ""
        print(f"{known[step]}  {size / MIB:.1f} MiB{remark}")
        if options.yes:
            get_commit_strategy(known[step]).remove(known[step])
    if not options.yes:
        print_note(options, "nothing was deleted; use --yes to delete")
    return 0


def parse_remove_options(arguments: list[str]) -> Namespace:
    """Parse the command line of `checkpoint rm`."""
    parser = CommandParser(
        "checkpoint rm",
        "Delete checkpoints of a run permanently. A run that trains is rejected.",
        EXAMPLES,
    )
    parser.add_argument(
        "run", metavar="run|checkpoint", help="a run directory, or one of its checkpoints"
    )
    parser.add_argument(
        "steps", metavar="step", nargs="*", help="steps whose checkpoints to delete"
    )
    parser.add_argument(
        "--yes", action="store_true", help="delete them; without this they are only listed"
    )
    return parser.parse_intermixed_args(arguments)


def choose_steps(place: AnyPath, words: list[str], known: Mapping[int, AnyPath]) -> list[int]:
    """Return the steps that words name, ascending.

    Raises:
        ProblemsFound: There is no word, or one names no checkpoint of the run.
    """
    steps = format_word_list(map(str, known), conjunction="and")
    if not words:
        raise problem_error(
            "usage",
            "no checkpoint is named",
            hint=f"name steps of {steps}: titanrun checkpoint rm {place} {next(iter(known))}",
        )
    found = {word: find_step(word, known) for word in words}
    unknown = [word for word, step in found.items() if step is None]
    if unknown:
        raise problem_error(
            "checkpoint",
            f"'{place}' has no checkpoint {format_word_list(unknown)}",
            hint=f"its checkpoints are of step{'s' if len(known) > 1 else ''} {steps}",
        )
    return sorted({step for step in found.values() if step is not None})


def find_step(word: str, known: Mapping[int, AnyPath]) -> int | None:
    """Return the step that `N`, `step-N` or the path of a checkpoint names, None if unknown."""
    match = STEP_WORD.fullmatch(PurePosixPath(word).name)
    step = None if match is None else int(match[1])
    if step is None or step not in known:
        return None
    is_other = "/" in word and to_absolute_path(parse_storage_path(word)) != to_absolute_path(
        known[step]
    )
    return None if is_other else step


def describe_deletions(place: AnyPath, chosen: list[int]) -> dict[int, str]:
    """Return what is lost with the only, the newest and the best of the complete checkpoints."""
    manifests = load_manifests(place)
    best = list_best_steps(manifests)[:1]
    remarks = dict.fromkeys(best, "the best one: lowest validation loss")
    if manifests:
        newest = list(manifests)[-1]
        told = "the newest one: a resume begins with it"
        remarks[newest] = "; ".join([told, *([remarks[newest]] if newest in remarks else [])])
    if manifests and set(manifests) <= set(chosen):
        remarks |= dict.fromkeys(list(manifests)[-1:], "the last one: no other one is left")
    return remarks
