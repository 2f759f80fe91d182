"""`titanrun checkpoint prune` and `save`: clear away what nobody wants to keep, and ask a run that trains for a checkpoint."""

import fcntl
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import Parser
from titanrun.components.checkpoints.addresses import Place, place
from titanrun.components.checkpoints.commits import commit_for
from titanrun.components.checkpoints.manifest import Manifest, is_checkpoint, read_manifest
from titanrun.components.checkpoints.retention import Retention
from titanrun.config.problems import ProblemsFound, fail
from titanrun.recipe.run_dir import LOCK, STATUS, boot_id, read_json
from titanrun.recipe.saved import checkpoint_folder, checkpoints_at

EXAMPLES = """  titanrun checkpoint prune runs/first --keep 2 --every 100 --best 1
  titanrun checkpoint prune runs/first --set-aside                     those that are damaged or superseded
  titanrun checkpoint save runs/first"""
SET_ASIDE = re.compile(r"step-(0|[1-9][0-9]*)\.(damaged|superseded)-[0-9a-f]{8}")
LOOK_EVERY_SECONDS = 0.1


def prune(arguments: list[str]) -> int:
    """Delete checkpoints; each loses its name first."""
    parser = Parser(
        "checkpoint prune",
        "Delete checkpoints of a run that are not kept by any of the options.",
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
    parser.add_argument("--every", type=int, metavar="N", help="keep those of steps that N divides")
    parser.add_argument(
        "--best",
        type=int,
        default=0,
        metavar="K",
        help="keep the K with the lowest validation loss",
    )
    parser.add_argument(
        "--set-aside",
        action="store_true",
        help="delete what was set aside as damaged or superseded",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    options = parser.parse_args(arguments)
    run = place(options.run)
    if options.keep < 0 or options.best < 0 or (options.every is not None and options.every < 1):
        raise fail(
            "usage",
            "--keep, --best and --every count checkpoints and steps",
            help="give numbers above zero",
        )
    if not options.keep and not options.set_aside:
        raise fail(
            "usage", "nothing says what to delete", help="give --keep K, --set-aside or both"
        )
    if not run.is_dir():
        raise fail(
            "checkpoint",
            f"there is no folder '{run}'",
            help="name a run directory, or the folder of its checkpoints",
        )
    if isinstance(run, Path) and any(map(is_locked, (run, *run.resolve().parents))):
        raise fail(
            "conflict",
            f"a run is training in '{run}'",
            help="it prunes by itself: checkpoint.keep_latest_k",
        )
    retention = Retention(options.keep, options.every, options.best)
    gone = [
        folder
        for step, folder in checkpoints_at(run).items()
        if step in retention.leaves_over(manifests(run))
    ]
    gone += set_aside(run) if options.set_aside else []
    for folder in gone:
        if not options.dry_run:
            commit_for(folder).remove(folder)
        print(f"{'would delete' if options.dry_run else 'deleted'} {folder}")
    return 0


def manifests(run: Place) -> dict[int, Manifest]:
    """The manifests of all checkpoints that have a good one; the others are never deleted for their age."""
    found = {}
    for step, folder in checkpoints_at(run).items():
        try:
            found[step] = read_manifest(folder)
        except ProblemsFound:
            continue
    return found


def set_aside(run: Place) -> list[Place]:
    """Folders that a run set aside."""
    folders = [folder for folder in (run, checkpoint_folder(run)) if folder.is_dir()]
    found = {
        entry for folder in folders for entry in folder.iterdir() if SET_ASIDE.fullmatch(entry.name)
    }
    return sorted(
        (entry for entry in found if not (isinstance(entry, Path) and entry.is_symlink())), key=str
    )


def save(arguments: list[str]) -> int:
    """Ask the process that trains for a checkpoint, and wait for it."""
    parser = Parser(
        "checkpoint save",
        "Have a run that is training now save a checkpoint after its current step.",
        EXAMPLES,
    )
    parser.add_argument("run", help="its run directory")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="how long to wait for it (600)",
    )
    options = parser.parse_args(arguments)
    run = Path(options.run)
    status = read_json(run / STATUS)
    refuse_unless_training(run, status)
    before = saved_now(run)
    os.kill(status["pid"], signal.SIGUSR2)
    end = time.monotonic() + options.timeout
    while time.monotonic() < end and is_locked(run):
        new = saved_now(run) - before
        if new:
            print(max(new)[1])
            return 0
        time.sleep(LOOK_EVERY_SECONDS)
    raise fail(
        "checkpoint",
        f"no checkpoint was saved in '{run}' within {options.timeout:g} s",
        help=f"look into {run / 'logs'}",
    )


def saved_now(run: Path) -> set[tuple[str, str]]:
    """When each checkpoint of a run was saved, and where it lies: one that takes the place of another is new."""
    folders = checkpoints_at(run).values()
    return {
        (read_manifest(folder).saved_at, str(folder)) for folder in folders if is_checkpoint(folder)
    }


def refuse_unless_training(run: Path, status: dict[str, Any]) -> None:
    """Raise where no process on this machine trains there."""
    if not is_locked(run) or status.get("state") != "running":
        raise fail(
            "usage", f"no run is training in '{run}'", help="name the run directory of one that is"
        )
    if (status.get("host"), status.get("boot_id")) != (socket.gethostname(), boot_id()):
        raise fail(
            "usage", f"the run trains on {status.get('host')}", help="give this command there"
        )


def is_locked(run: Path) -> bool:
    """Whether a worker holds the run directory."""
    if not (run / LOCK).is_file():
        return False
    with (run / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
