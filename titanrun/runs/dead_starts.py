"""Starts of a run whose process died before the first step."""

from pathlib import Path

from titanrun.recipe.rundir.run_files import PREVIOUS
from titanrun.recipe.rundir.start_undo import undo_start
from titanrun.runs.run_state import ACTIVE_STATES, get_host_info, get_run_state
from titanrun.runs.run_summary import load_run_summary


def undo_dead_start(named: str | None) -> None:
    """Give the run in a folder, if there is one, back as it was before a start that died."""
    folder = Path(named or "")
    if named is None or not (folder / PREVIOUS).exists():
        return
    state = get_run_state(load_run_summary(folder, needs_metrics=False), get_host_info())
    # on another machine it may be alive
    if state not in (*ACTIVE_STATES, "stale"):
        undo_start(folder)
