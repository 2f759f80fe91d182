"""Runs of one recipe with stages: which others belong to a run."""

from pathlib import Path

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
