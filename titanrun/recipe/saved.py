"""Checkpoints as a person names them: a folder step-N, a run directory, or the folder of its checkpoints."""

from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.manifest import is_checkpoint, read_manifest, step_folders
from titanrun.config.problems import fail
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved

RESOLVED = "resolved.yaml"


def checkpoints_at(named: Path) -> dict[int, Path]:
    """The folders that bear a checkpoint's name in a run directory or a folder of checkpoints, whole or not, by step, ascending."""
    for folder in (named, checkpoint_folder(named)):
        if found := step_folders(folder):
            return found
    return {}


def checkpoint_at(named: Path) -> Path:
    """The checkpoint that is named, or the newest one there. Raises a problem `checkpoint` where there is none."""
    if is_checkpoint(named):
        return named
    whole = [path for path in checkpoints_at(named).values() if is_checkpoint(path)]
    if not whole:
        message = f"'{named}' is neither a checkpoint nor a run directory with one"
        raise fail("checkpoint", message, help="name a folder step-N, or a run directory")
    return whole[-1]


def run_around(checkpoint: Path) -> Path | None:
    """The run directory that a checkpoint lies in; None where it was moved out of it."""
    folder = checkpoint.resolve().parent
    return next((parent for parent in folder.parents if (parent / RESOLVED).is_file() and checkpoint_folder(parent) == folder), None)


def checkpoint_folder(run: Path) -> Path:
    """Where the checkpoints of a run lie: its resolved recipe says so."""
    named = CheckpointConfig().folder
    if (run / RESOLVED).is_file() and not is_checkpoint(run):
        named = read_resolved(run / RESOLVED).checkpoint.folder
    return run / named


def parent_of(run: Recipe) -> dict[str, Any] | None:
    """The checkpoint that a run starts from; None where it starts from none, or from files of another kind."""
    section = run.checkpoint
    if section.initial_load_path is None or section.initial_load_in_hf:
        return None
    place = Path(section.initial_load_path)
    found = [place] if is_checkpoint(place) else [path for path in checkpoints_at(place).values() if is_checkpoint(path)]
    if not found:
        return None
    manifest = read_manifest(found[-1])
    return {"checkpoint": str(found[-1].resolve()), "step": manifest.step, "recipe": manifest.recipe}
