"""Whether a run that says it is running still does."""

import fcntl
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from titanrun.ledger.entry import Entry
from titanrun.recipe.run_files import LOCK, boot_id

ACTIVE = ("starting", "running")
# the heartbeat is written as steps end: some steps, with a save or a validation among them, take minutes
STALE_SECONDS = 900.0
STATES = ("starting", "running", "finished", "preempted", "failed", "crashed", "stale", "unknown")


@dataclass(frozen=True, slots=True)
class Here:
    """This machine now: its name, its boot, and the seconds since 1970."""

    host: str
    boot_id: str | None
    now: float


def here_now() -> Here:
    """This machine as it is now."""
    return Here(socket.gethostname(), boot_id(), time.time())


def live_state(entry: Entry, here: Here) -> str:
    """The state of a run now: one of STATES.

    A run that ended says how. One that does not is `crashed` where its process is known to be gone: on this machine it holds the run's
    lock, or has its process id while it starts. On another machine it is `stale` once its heartbeat is old.
    """
    if entry.state not in ACTIVE:
        return entry.state if entry.state in STATES else "unknown"
    if entry.host == here.host:
        # the lock comes last: to try it is to hold it for a moment, which a run that is just starting must not meet
        is_begun = entry.state == "starting" and exists(entry.pid)
        is_alive = entry.boot_id == here.boot_id and (is_begun or is_locked(Path(entry.run) / LOCK))
        return entry.state if is_alive else "crashed"
    return (
        "stale"
        if entry.heartbeat is None or here.now - entry.heartbeat > STALE_SECONDS
        else entry.state
    )


def is_locked(lock: Path) -> bool:
    """Whether a live process holds the lock of a run directory."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def exists(pid: int | None) -> bool:
    """Whether there is a process with this id."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
