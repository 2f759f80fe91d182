"""Runs of one recipe with stages: which others belong to a run."""

from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.data_diff import DataChange
from titanrun.config.problems import ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.recipe.resolving.multi_stage import STAGES_FILE, get_stages


def list_stage_ids(run: Path) -> list[str]:
    """Return all stages of the recipe that a run is one stage of, in order.

    Each is the name of a folder beside the run. Return an empty list for a run of its own.
    """
    whole = run.absolute().parent / STAGES_FILE
    if not whole.is_file():
        return []
    try:
        found = list(get_stages(read_source(str(whole))))
    except ProblemsFound:
        return []
    return found if run.absolute().name in found else []


def is_moved_start(change: DataChange, run: Path) -> bool:
    """Return whether a change is only the new place of the stage that a stage starts from.

    The folder of all stages was moved or copied, and titanrun had written the former place.
    """
    if change.path != ("checkpoint", "initial_load_path"):
        return False
    before, now = change.left, change.right
    if not isinstance(before, str) or not isinstance(now, str):
        return False
    if is_storage_path(before) or is_storage_path(now):
        return False
    stage = Path(now).resolve()
    is_beside = stage.parent == run.resolve().parent and stage.name in list_stage_ids(run)
    return is_beside and Path(before).name == stage.name
