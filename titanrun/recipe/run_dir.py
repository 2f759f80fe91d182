"""The run directory: who may write into it, and the files that say what ran."""

import fcntl
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from titanrun.components.checkpoints.addresses import Place, is_address
from titanrun.components.checkpoints.manifest import MANIFEST_FILE, is_checkpoint, step_folders
from titanrun.config.base import dump, nested
from titanrun.config.counted import counted
from titanrun.config.diff import Change, compare
from titanrun.config.masking import masked
from titanrun.config.problems import Problem, ProblemsFound, Related, fail
from titanrun.config.render import shorten
from titanrun.config.secrets import values_to_hide
from titanrun.config.tree import find, path_text
from titanrun.recipe.drift import Drift, change_text, judge
from titanrun.recipe.length import written_lengths
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import Resolved, read_resolved
from titanrun.recipe.run_files import LOCK as LOCK
from titanrun.recipe.run_files import METRICS as METRICS
from titanrun.recipe.run_files import RESOLVED as RESOLVED
from titanrun.recipe.run_files import RUN_JSON as RUN_JSON
from titanrun.recipe.run_files import RUNS as RUNS
from titanrun.recipe.run_files import SOURCES as SOURCES
from titanrun.recipe.run_files import STATUS as STATUS
from titanrun.recipe.run_files import boot_id as boot_id
from titanrun.recipe.run_files import read_json as read_json
from titanrun.recipe.run_files import write_atomically as write_atomically
from titanrun.recipe.run_files import write_json as write_json
from titanrun.recipe.run_record import FORMAT, diff_name, start_record
from titanrun.recipe.saved import folder_in, parent_of, refuse_another_run
from titanrun.recipe.sources import source_report, sources

# the second says so of one whose manifest is lost
OF_A_CHECKPOINT = (MANIFEST_FILE, ".metadata")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A folder that a run may write into. `done` is the last step of a finished run, the last saved one of an unfinished."""

    path: Path
    state: Literal["new", "unfinished", "finished"]
    drift: Drift = field(default_factory=Drift)
    done: int | None = None


def find_run_directory(resolved: Resolved, now: datetime) -> RunDirectory:
    """The directory of this run, nothing written yet. Raises ProblemsFound where another run lives there."""
    if resolved.recipe.dump_folder is None:
        refuse_another_run(resolved.run)
        return RunDirectory(new_folder(Path(RUNS), str(resolved.run.name), now), "new")
    path = Path(resolved.recipe.dump_folder)
    place = find(resolved.tree, ("dump_folder",))
    origin = place.origin if place else None
    if path.exists() and not path.is_dir():
        raise fail(
            "file", f"'{path}' is a file, not a folder", path=("dump_folder",), origin=origin
        )
    if not path.exists() or not any(path.iterdir()):
        refuse_another_run(resolved.run)
        return RunDirectory(path, "new")
    refuse_links_outside(path, resolved.run)
    if any((path / name).exists() for name in OF_A_CHECKPOINT):
        help = "name a new folder; titanrun resume goes on from a checkpoint"
        message = f"'{path}' is a checkpoint, or what is left of one, and no run directory"
        raise fail("file", message, path=("dump_folder",), origin=origin, help=help)
    if not (path / RESOLVED).is_file():
        help = "name an empty or a new folder"
        raise fail(
            "file",
            f"'{path}' is not empty and holds no run",
            path=("dump_folder",),
            origin=origin,
            help=help,
        )
    return existing_run(path, resolved)


def refuse_links_outside(path: Path, run: Recipe) -> None:
    """Raise where an output folder of the run is a link that leads out of the run directory."""
    for where, config in nested(run):
        folder = dict(config).get("folder")
        if (
            folder is not None
            and not is_address(folder)
            and not (path / folder).resolve().is_relative_to(path.resolve())
        ):
            raise fail(
                "file",
                f"'{path / folder}' leads out of the run directory",
                path=(*where, "folder"),
                help="remove the link",
            )


def new_folder(parent: Path, name: str, now: datetime) -> Path:
    """`<parent>/<name>-<time>`, with a counter where that exists already."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    base = f"{safe}-{now:%Y%m%d-%H%M%S}"
    candidates = [parent / base, *(parent / f"{base}-{count}" for count in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def existing_run(path: Path, resolved: Resolved) -> RunDirectory:
    """A folder with a run in it: the same recipe goes on, another one is a problem unless nothing was trained yet."""
    refuse_if_in_use(path, resolved)
    before = read_resolved(path / RESOLVED)
    status, saved = (
        read_json(path / STATUS),
        last_saved_step(folder_in(path, before.checkpoint.folder)),
    )
    drift = judge(compare(dump(before), dump(resolved.run)), before, resolved.run)
    if drift.refused and saved is None and not (path / METRICS).exists():
        return RunDirectory(path, "new")
    if drift.refused:
        raise ProblemsFound([another_recipe(path, drift.refused, resolved)])
    steps = resolved.run.training.steps
    if saved is not None and isinstance(steps, int) and steps < saved:
        raise ProblemsFound([fewer_steps_than_saved(path, steps, saved, resolved)])
    done = status.get("step") if status.get("state") == "finished" else None
    is_seed = (
        before.checkpoint.create_seed_checkpoint
        and not resolved.run.checkpoint.create_seed_checkpoint
    )
    if (
        isinstance(done, int)
        and not is_seed
        and is_no_longer(resolved.run, before)
        and not goes_back(resolved.run, before, done)
    ):
        return RunDirectory(path, "finished", done=done)
    return RunDirectory(path, "unfinished", drift, done=saved)


def goes_back(run: Recipe, before: Recipe, done: int) -> bool:
    """Whether a run asks to go on from an earlier step of its own than the one it ended at, and has not done so yet."""
    step = run.checkpoint.load_step
    return step is not None and step != before.checkpoint.load_step and step < done


def is_no_longer(run: Recipe, before: Recipe) -> bool:
    """Whether a run asks for no more than the one before it did; steps and epochs cannot be compared before the data is open."""
    pairs = (
        (run.training.steps, before.training.steps),
        (run.training.epochs, before.training.epochs),
    )
    known = [now <= then for now, then in pairs if isinstance(now, int) and isinstance(then, int)]
    return all(known) and bool(known)


def refuse_if_in_use(path: Path, resolved: Resolved) -> None:
    """Raise where a live process holds the run's lock; the worker takes it for as long as it runs."""
    lock = path / LOCK
    if not lock.exists():
        return
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_json(path / STATUS)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise ProblemsFound(
                [
                    at_dump_folder(
                        "run-in-use",
                        f"'{path}' is in use by {who}",
                        resolved,
                        help="wait for it, or stop it",
                    )
                ]
            ) from None


def last_saved_step(folder: Place) -> int | None:
    """The newest checkpoint in a folder."""
    return max(
        (step for step, path in step_folders(folder).items() if is_checkpoint(path)), default=None
    )


def at_dump_folder(
    rule: str, message: str, resolved: Resolved, *, help: str, related: tuple[Related, ...] = ()
) -> Problem:
    """A conflict between the recipe and what its run directory holds."""
    place = find(resolved.tree, ("dump_folder",))
    origin = place.origin if place else None
    return Problem(
        "conflict", message, ("dump_folder",), origin, rule=rule, help=help, related=related
    )


def fewer_steps_than_saved(path: Path, steps: int, saved: int, resolved: Resolved) -> Problem:
    """A run cannot be shortened below what is done."""
    related = tuple(
        Related(node.origin, f"{path_text(path)} is {shorten(node.value)}", path)
        for path, node in written_lengths(resolved.tree)
    )
    message = (
        f"'{path}' has trained {counted(saved, 'step')} already, more than the {steps} asked for"
    )
    return at_dump_folder(
        "steps-already-done",
        message,
        resolved,
        help=f"ask for {saved} or more, or name another folder",
        related=related,
    )


def another_recipe(path: Path, changes: Sequence[Change], resolved: Resolved) -> Problem:
    """One problem that lists every change a resume does not allow."""
    listed = tuple(
        Related(origin_of(change, resolved), change_text(change), change.path) for change in changes
    )
    message = f"'{path}' holds a run of another recipe: {counted(len(changes), 'value differs', 'values differ')}"
    help = "name another folder, undo the changes, or list in checkpoint.allow_change those that you mean"
    return at_dump_folder("another-run", message, resolved, help=help, related=listed)


def origin_of(change: Change, resolved: Resolved) -> Any:
    """Where the new value of a change was written."""
    node = find(resolved.tree, change.path)
    return node.origin if node is not None else None


def write_run(
    directory: RunDirectory,
    resolved: Resolved,
    argv: Sequence[str],
    now: datetime,
    *,
    environment: Mapping[str, str],
    trusts_remote_code: bool = False,
) -> None:
    """Create the directory and write resolved.yaml, resolved.sources.json and run.json; values of secrets, which `environment` has, in
    none of them."""
    hidden = values_to_hide(environment, resolved.run)
    said = [masked(word, hidden) for word in argv]
    # before there are new files, which git would name
    start, diff = start_record(
        resolved.run,
        said,
        now,
        changes=directory.drift.changes,
        hidden=hidden,
        trusts_remote_code=trusts_remote_code,
    )
    make_folder(directory.path, resolved)
    # first: a run that dies before its worker stands must not look finished, nor as if it had never been started
    write_json(directory.path / STATUS, starting_status(read_json(directory.path / STATUS)))
    write_atomically(directory.path / RESOLVED, resolved.text)
    write_json(directory.path / SOURCES, source_report(sources(resolved), resolved.tree, said))
    if diff:
        write_atomically(directory.path / diff_name(diff), diff)
    first: dict[str, Any] = {
        "format": FORMAT,
        "name": resolved.run.name,
        "parent": parent_of(resolved.run),
        "starts": [],
    }
    record = read_json(directory.path / RUN_JSON) or first
    write_json(directory.path / RUN_JSON, {**record, "starts": [*record["starts"], start]})


def write_recipe(directory: RunDirectory, resolved: Resolved, argv: Sequence[str]) -> None:
    """Create the directory and write resolved.yaml and resolved.sources.json only, for a job that opens the run when its turn comes."""
    make_folder(directory.path, resolved)
    write_atomically(directory.path / RESOLVED, resolved.text)
    write_json(
        directory.path / SOURCES, source_report(sources(resolved), resolved.tree, list(argv))
    )


def make_folder(path: Path, resolved: Resolved) -> None:
    """Create the run directory where it is not there. Raises ProblemsFound where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        place = find(resolved.tree, ("dump_folder",))
        message = (
            f"cannot make the run directory '{path}': {(error.strerror or str(error)).lower()}"
        )
        origin = place.origin if place else None
        raise fail(
            "file",
            message,
            path=("dump_folder",),
            origin=origin,
            help="name a folder that can be written",
        ) from None


def starting_status(before: Mapping[str, Any]) -> dict[str, Any]:
    """status.json until a worker writes it; this process becomes that worker, or the launcher of several."""
    step = before.get("step")
    process = {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": boot_id()}
    return {
        "state": "starting",
        "step": step if isinstance(step, int) else 0,
        **process,
        "heartbeat": time.time(),
        "exit_code": None,
    }


def record_decisions(
    run_directory: Path, decisions: Mapping[str, object], machine: Mapping[str, object]
) -> None:
    """Add to the last start in run.json what only the machine could decide (device, ranks), and what it is."""
    record = read_json(run_directory / RUN_JSON) or {"format": FORMAT, "starts": [{}]}
    record["starts"][-1] |= {"decided": dict(decisions), "machine": dict(machine)}
    write_json(run_directory / RUN_JSON, record)
