"""How far the run in a folder has come, and whether a recipe asks for less or more."""

from pathlib import Path

from titanrun.components.checkpoints.spec.manifest import is_checkpoint, list_step_folders
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config.read_source import read_source
from titanrun.config.tree import find_node
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.checkpoint_lookup import locate_checkpoint_folder
from titanrun.recipe.rundir.run_files import METRICS, RESOLVED, STATUS, read_json_or_empty


def has_trained(path: Path) -> bool:
    """Return whether the run in a folder has made a step, or has finished or saved anything."""
    status = read_json_or_empty(path / STATUS)
    metrics = path / METRICS
    if status.get("state") == "finished" or status.get("step"):
        return True
    if metrics.exists() and metrics.stat().st_size > 0:
        return True
    # its components may be those of a plug-in that cannot be imported
    node = find_node(read_source(str(path / RESOLVED)), ("checkpoint", "folder"))
    folder = str(node.value) if node is not None else ""
    return find_last_saved_step(locate_checkpoint_folder(path, folder)) is not None


def resumes_earlier_step(run: Recipe, before: Recipe, done: int) -> bool:
    """Return whether a finished run shall resume from an earlier step, not yet done."""
    step = run.checkpoint.load_step
    return step is not None and step != before.checkpoint.load_step and step < done


def is_cut_to(saved: int | None, run: Recipe, before: Recipe) -> bool:
    """Return whether an unfinished run is shortened to the steps that it has saved."""
    steps, planned = run.training.steps, before.training.steps
    if saved is None or steps != saved or not isinstance(planned, int):
        return False
    return saved < planned and not resumes_earlier_step(run, before, saved)


def has_no_more_steps(run: Recipe, before: Recipe) -> bool:
    """Return whether a run is no longer than the one before it.

    Steps and epochs cannot be compared before the data is loaded.
    """
    pairs = (
        (run.training.steps, before.training.steps),
        (run.training.epochs, before.training.epochs),
    )
    known = [now <= then for now, then in pairs if isinstance(now, int) and isinstance(then, int)]
    return all(known) and bool(known)


def find_last_saved_step(folder: AnyPath) -> int | None:
    """Return the step of the newest checkpoint in a folder, or None."""
    return max(
        (step for step, path in list_step_folders(folder).items() if is_checkpoint(path)),
        default=None,
    )
