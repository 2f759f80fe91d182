"""Liveness of runs: detection of stale `running` states."""

import fcntl
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.process_id import is_process_alive
from titanrun.recipe.rundir.run_files import LOCK, read_boot_id
from titanrun.runs.run_summary import RunSummary

ACTIVE_STATES = ("starting", "running")
# the heartbeat is written at the end of steps: steps with a save or a validation take minutes
STALE_SECONDS = 900.0
STATES = ("starting", "running", "finished", "preempted", "failed", "crashed", "stale", "unknown")
# what tables and messages say of a run in the state preempted that Ctrl-C stopped
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class HostInfo:
    """This machine now: host name, boot id, and the seconds since 1970."""

    host: str
    boot_id: str | None
    now: float


def get_host_info() -> HostInfo:
    """Return the current data of this machine."""
    return HostInfo(socket.gethostname(), read_boot_id(), time.time())


def get_run_state(summary: RunSummary, host_info: HostInfo) -> str:
    """Return the current state of a run, one of STATES.

    A run that ended has recorded its state. One that did not is `crashed` if its process is known
    to be dead: on this machine a live run holds the run's lock, or has its process id while it
    starts. On another machine it is `stale` once its heartbeat is old.
    """
    if summary.state not in ACTIVE_STATES:
        return summary.state if summary.state in STATES else "unknown"
    if summary.host == host_info.host:
        # the lock is checked last: the check holds it briefly, which would disturb a starting run
        is_begun = summary.state == "starting" and is_process_alive(summary.pid)
        is_alive = summary.boot_id == host_info.boot_id and (
            is_begun or is_run_directory_locked(Path(summary.run) / LOCK)
        )
        return summary.state if is_alive else "crashed"
    return (
        "stale"
        if summary.heartbeat is None or host_info.now - summary.heartbeat > STALE_SECONDS
        else summary.state
    )


def describe_run_state(summary: RunSummary, state: str) -> str:
    """Return a state for people: a run that Ctrl-C stopped is interrupted, not preempted."""
    return INTERRUPTED if state == "preempted" and summary.signal == "SIGINT" else state


def is_run_directory_locked(lock: Path) -> bool:
    """Return whether a live process holds the lock of a run directory."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
