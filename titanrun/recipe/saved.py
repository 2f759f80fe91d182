"""Checkpoints as a person names them: a folder step-N, a run directory, or the folder of its checkpoints."""

import atexit
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from titanrun.components.checkpoints.addresses import Address, Place, is_address, place
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.manifest import (
    damage,
    is_checkpoint,
    read_manifest,
    step_folders,
)
from titanrun.config.base import dump
from titanrun.config.diff import compare
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.config.suggest import listing
from titanrun.recipe.drift import change_text, judge
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.run_files import RESOLVED as RESOLVED
from titanrun.recipe.stages import STAGES_FILE


def checkpoints_at(named: Place) -> dict[int, Place]:
    """The folders that bear a checkpoint's name in a run directory or a folder of checkpoints, whole or not, by step, ascending."""
    for folder in (named, checkpoint_folder(named)):
        if found := step_folders(folder):
            return dict(found)
    return {}


def checkpoint_at(named: Place) -> Place:
    """The checkpoint that is named, or the newest one there. Raises a problem `checkpoint` where there is none."""
    if is_checkpoint(named):
        return named
    whole = [path for path in checkpoints_at(named).values() if is_checkpoint(path)]
    if not whole:
        message = f"'{named}' is neither a checkpoint nor a run directory with one"
        stages = stages_in(named)
        help = (
            f"it holds the runs of stages: name {listing(stages)}"
            if stages
            else "name a folder step-N, or a run directory"
        )
        raise fail("checkpoint", message, help=help)
    return whole[-1]


def stages_in(named: Place) -> list[str]:
    """The runs with checkpoints in a folder that a recipe with stages was trained into; none where it is no such folder."""
    if not isinstance(named, Path) or not (named / STAGES_FILE).is_file():
        return []
    return [str(run) for run in sorted(named.iterdir()) if run.is_dir() and checkpoints_at(run)]


def trusted_at(named: Place) -> tuple[Place, dict[Place, list[str]]]:
    """The checkpoint that is named, as it is; of a run the newest that is as it was saved, and what is wrong with newer ones.

    Raises a problem `checkpoint` where there is none, one for each where all are damaged.
    """
    if is_checkpoint(named):
        return named, {}
    newest = checkpoint_at(named)
    damaged: dict[Place, list[str]] = {}
    for folder in (
        path for path in reversed(list(checkpoints_at(named).values())) if is_checkpoint(path)
    ):
        reasons = reasons_against(folder)
        if not reasons:
            return folder, damaged
        damaged[folder] = reasons
    help = "restore one from a copy"
    raise ProblemsFound(
        Problem(
            "checkpoint",
            f"{folder} cannot be used: {'; '.join(reasons)}",
            help=help if folder == newest else None,
        )
        for folder, reasons in damaged.items()
    )


def reasons_against(folder: Place) -> list[str]:
    """What is wrong with a checkpoint, every byte of it read."""
    try:
        manifest = read_manifest(folder)
    except ProblemsFound as error:
        return [problem.message for problem in error.problems]
    return damage(folder, manifest, "always")


def run_around(checkpoint: Place) -> Path | None:
    """The run directory that a checkpoint lies in; None where it was moved out of it."""
    if isinstance(checkpoint, Address):
        return None
    folder = checkpoint.resolve().parent
    return next(
        (
            parent
            for parent in folder.parents
            if (parent / RESOLVED).is_file() and checkpoint_folder(parent) == folder
        ),
        None,
    )


def checkpoint_folder(run: Place) -> Place:
    """Where the checkpoints of a run lie: its resolved recipe says so."""
    named = CheckpointConfig().folder
    if isinstance(run, Address):
        return run / named
    if (run / RESOLVED).is_file() and not is_checkpoint(run):
        named = read_resolved(run / RESOLVED).checkpoint.folder
    return folder_in(run, named)


def folder_in(run: Path, named: str) -> Place:
    """The folder of checkpoints that a recipe names: inside the run directory, unless it is an address."""
    return place(named) if is_address(named) else run / named


def absolute(named: Place) -> str:
    """A place so that it means the same from everywhere."""
    return str(named.resolve() if isinstance(named, Path) else named)


def resolved_file(checkpoint: Place) -> str:
    """A file on this machine with the recipe of a checkpoint. Of one in a store it is a copy, which stays while this process does."""
    if isinstance(checkpoint, Path):
        return str(checkpoint / RESOLVED)
    folder = mkdtemp(prefix="titanrun-")
    atexit.register(rmtree, folder, ignore_errors=True)
    file = Path(folder) / RESOLVED
    file.write_text((checkpoint / RESOLVED).read_text(), encoding="utf-8")
    return str(file)


def refuse_another_run(run: Recipe) -> None:
    """Raise a problem where a new run would save into an address that holds the checkpoints of another recipe. The same one goes on."""
    section = run.checkpoint
    if not section.enable or not is_address(section.folder):
        return
    found = [path for path in step_folders(place(section.folder)).values() if is_checkpoint(path)]
    if not found:
        return
    before = read_resolved(Path(resolved_file(found[-1])))
    refused = judge(compare(dump(before), dump(run)), before, run).refused
    if refused:
        message = f"{section.folder} holds checkpoints of another recipe: {listing(map(change_text, refused), last='and', most=4)}"
        help = "name another address, undo the changes, or list in checkpoint.allow_change those that you mean"
        raise fail("conflict", message, path=("checkpoint", "folder"), help=help)


def parent_of(run: Recipe) -> dict[str, Any] | None:
    """The checkpoint that a run starts from; None where it starts from none, or from files of another kind."""
    section = run.checkpoint
    if section.initial_load_path is None or section.initial_load_in_hf:
        return None
    named = place(section.initial_load_path)
    found = (
        [named]
        if is_checkpoint(named)
        else [path for path in checkpoints_at(named).values() if is_checkpoint(path)]
    )
    if not found:
        return None
    manifest = read_manifest(found[-1])
    return {"checkpoint": absolute(found[-1]), "step": manifest.step, "recipe": manifest.recipe}
