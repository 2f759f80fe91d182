"""Logs of a sweep's runs, whose locks tell that a run is alive before it has written a file."""

import fcntl
from pathlib import Path
from typing import IO

from titanrun.runs.run_state import is_run_directory_locked
from titanrun.sweep.run_sources import ACTIVE_RUN_STATES
from titanrun.sweep.sweep_results import get_sweep_run_state

LOGS = "logs"


def get_log_path(folder: Path, name: str) -> Path:
    """Return the log of a run's output, which its processes keep locked."""
    return folder / LOGS / f"{name}.log"


def lock_log(log: IO[bytes]) -> bool:
    """Lock the log of a run that starts. Return False if processes of the run still write to it.

    The lock is that of the open file, which the run inherits: it ends with the last of its
    processes, not with the sweep.
    """
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_run_alive(folder: Path, name: str) -> bool:
    """Return whether processes of a run are alive, including those that are only starting."""
    state = get_sweep_run_state(folder / name)
    return state in ACTIVE_RUN_STATES or (
        state == "waiting" and is_run_directory_locked(get_log_path(folder, name))
    )
