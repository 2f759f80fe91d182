"""`titanrun checkpoint prune` and `now`: delete checkpoints, request one from a live run."""

import re
import time
from argparse import Namespace
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.run_argument import find_run
from titanrun.components.checkpoints.spec.commit import get_commit_strategy
from titanrun.components.checkpoints.spec.manifest import is_checkpoint, read_manifest
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import AnyPath, parse_storage_path
from titanrun.config.problems import problem_error
from titanrun.launch.run_control import is_training, request_save
from titanrun.recipe.rundir.checkpoint_lookup import (
    get_checkpoint_folder,
    get_checkpoints_by_step,
    load_manifests,
)
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_recipe import read_plain_recipe

EXAMPLES = """  titanrun checkpoint prune runs/first --keep 2 --every 100 --best 1
  titanrun checkpoint prune runs/first --set-aside  delete damaged and superseded ones
  titanrun checkpoint now runs/first"""
SET_ASIDE_PATTERN = re.compile(r"step-(0|[1-9][0-9]*)\.(damaged|superseded|occupied)-[0-9a-f]{8}")
POLL_SECONDS = 0.1


def prune_checkpoints(arguments: list[str]) -> int:
    """Delete checkpoints. Each is renamed first."""
    options = parse_prune_options(arguments)
    run = parse_storage_path(find_run(options.run, wants="change"))
    if options.keep < 0 or (options.best or 0) < 0 or (options.every or 1) < 1:
        raise problem_error(
            "usage",
            "--keep, --best and --every count checkpoints and steps",
            hint="use numbers above zero",
        )
    if not options.keep and not options.set_aside:
        raise problem_error(
            "usage",
            "no checkpoints selected for deletion",
            hint="use --keep K, --set-aside or both",
        )
    if not run.is_dir():
        raise problem_error(
            "checkpoint",
            f"folder not found: '{run}'",
            hint="pass a run directory, or the folder of its checkpoints",
        )
    check_is_not_training(run)
    retention = build_retention(run, options)
    gone = [
        folder
        for step, folder in get_checkpoints_by_step(run).items()
        if step in retention.select_steps_to_delete(load_manifests(run))
    ]
    gone += find_set_aside(run) if options.set_aside else []
    for folder in gone:
        if not options.dry_run:
            get_commit_strategy(folder).remove(folder)
        print(f"{'would delete' if options.dry_run else 'deleted'} {folder}")
    return 0


def check_is_not_training(place: AnyPath) -> None:
    """Raise a problem if a run trains in a folder, or in the one that the folder belongs to."""
    folders = (place, *place.resolve().parents) if isinstance(place, Path) else ()
    training = next((folder for folder in folders if is_training(folder)), None)
    if training is None:
        return
    named = place if isinstance(place, Path) and training == place.resolve() else training
    raise problem_error(
        "conflict",
        f"a run is training in '{named}'",
        hint=f"it deletes old checkpoints itself (checkpoint.keep_latest_k); to delete others, "
        f"stop it first: titanrun stop {named} --wait",
    )


def build_retention(run: AnyPath, options: Namespace) -> RetentionPolicy:
    """Return what is kept: without --every and --best, what the recipe of the run keeps."""
    folders = (run, run.parent) if isinstance(run, Path) else ()
    recipes = (read_plain_recipe(folder / RESOLVED) for folder in folders)
    section = next(filter(None, recipes), {}).get("checkpoint", {})
    every, best = section.get("keep_every"), section.get("keep_best", 0)
    return RetentionPolicy(
        options.keep,
        every if options.every is None else options.every,
        best if options.best is None else options.best,
    )


def parse_prune_options(arguments: list[str]) -> Namespace:
    """Parse the command line of `checkpoint prune`."""
    parser = CommandParser(
        "checkpoint prune",
        "Delete the checkpoints of a run that none of the options keeps.",
        EXAMPLES,
    )
    parser.add_argument("run", help="a run directory, or the folder of its checkpoints")
    parser.add_argument(
        "--keep",
        type=int,
        default=0,
        metavar="K",
        help="keep the latest K; without it no checkpoint is deleted",
    )
    parser.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="keep steps that are multiples of N; by default checkpoint.keep_every of the run",
    )
    parser.add_argument(
        "--best",
        type=int,
        metavar="K",
        help="keep the K with the lowest validation loss; by default checkpoint.keep_best of the "
        "run",
    )
    parser.add_argument(
        "--set-aside",
        action="store_true",
        help="delete checkpoints set aside as damaged or superseded",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    return parser.parse_args(arguments)


def find_set_aside(run: AnyPath) -> list[AnyPath]:
    """Return the folders that a run set aside."""
    folders = [folder for folder in (run, get_checkpoint_folder(run)) if folder.is_dir()]
    found = {
        entry
        for folder in folders
        for entry in folder.iterdir()
        if SET_ASIDE_PATTERN.fullmatch(entry.name)
    }
    return sorted(
        (entry for entry in found if not (isinstance(entry, Path) and entry.is_symlink())), key=str
    )


def request_checkpoint(arguments: list[str]) -> int:
    """Request a checkpoint from the training process and wait for it."""
    parser = CommandParser(
        "checkpoint now",
        "Make a running run save a checkpoint after its current step.",
        EXAMPLES,
    )
    parser.add_argument("run", help="its run directory")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="how long to wait for it, in seconds (600)",
    )
    options = parser.parse_args(arguments)
    run = Path(find_run(options.run, wants="unfinished"))
    before = get_saved_checkpoints(run)
    request_save(run)
    end = time.monotonic() + options.timeout
    while time.monotonic() < end and is_training(run):
        new = get_saved_checkpoints(run) - before
        if new:
            print(max(new)[1])
            return 0
        time.sleep(POLL_SECONDS)
    raise problem_error(
        "checkpoint",
        f"no checkpoint was saved in '{run}' within {options.timeout:g} s",
        hint=f"check the logs in {run / 'logs'}",
    )


def get_saved_checkpoints(run: Path) -> set[tuple[str, str]]:
    """Return the time and path of each saved checkpoint of a run.

    A checkpoint that replaces another one is thereby a new entry.
    """
    folders = get_checkpoints_by_step(run).values()
    return {
        (read_manifest(folder).saved_at, str(folder)) for folder in folders if is_checkpoint(folder)
    }
