"""Requests to the process that trains a run: stop after the current step, stop at once, or save."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.recipe.rundir.run_files import LOCK, STATUS, read_boot_id, read_json_or_empty
from titanrun.runs.run_state import ACTIVE_STATES, is_run_directory_locked

POLL_SECONDS = 0.1
# the second SIGINT counts only if the first one has been handled
INTERRUPT_GAP_SECONDS = 0.5
MAX_INTERRUPTS = 20


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """The process that trains a run on this machine.

    Args:
        run: Its run directory.
        pid: Process id of its main rank.
        handle: File descriptor of the process, or None where the system has none.
    """

    run: Path
    pid: int
    handle: int | None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended needs none."""
        with contextlib.suppress(ProcessLookupError):
            if self.handle is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self.handle, number)


@contextmanager
def open_training_process(run: Path) -> Iterator[TrainingProcess]:
    """Open the process that trains a run, so that its id cannot come to mean another one.

    Raises:
        ProblemsFound: No process on this machine trains the run.
    """
    status = read_json_or_empty(run / STATUS)
    pid = status.get("pid")
    if status.get("state") not in ACTIVE_STATES:
        raise problem_error(
            "usage", f"no run is training in '{run}'", hint="pass the directory of a running run"
        )
    if (status.get("host"), status.get("boot_id")) != (socket.gethostname(), read_boot_id()):
        raise problem_error(
            "usage", f"the run trains on {status.get('host')}", hint="run this command there"
        )
    handle = open_process(pid)
    try:
        # checked after the process was opened: its id may have been another one's before
        if not is_run_directory_locked(run / LOCK):
            raise problem_error(
                "usage",
                f"no run is training in '{run}'",
                hint="pass the directory of a running run",
            )
        if type(pid) is not int or not holds_run_lock(run, pid):
            raise problem_error(
                "checkpoint",
                f"{run / STATUS} names process {pid}, which does not train the run",
                hint="send the signal to the process that trains it",
            )
        yield TrainingProcess(run, pid, handle)
    finally:
        if handle is not None:
            os.close(handle)


def open_process(pid: object) -> int | None:
    """Return a file descriptor of a process, or None if it is gone or the system has none."""
    if type(pid) is not int or pid <= 1 or not hasattr(os, "pidfd_open"):
        return None
    # OverflowError: a damaged status file may hold any number
    with contextlib.suppress(OSError, OverflowError):
        return os.pidfd_open(pid)
    return None


def holds_run_lock(run: Path, pid: int) -> bool:
    """Return whether a process of that id has the lock file of the run directory open.

    A signal ends a process that does not expect it. Without /proc only the number is checked.
    """
    if pid <= 1:
        return False
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        handles = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    lock = (run / LOCK).stat()
    for handle in handles:
        with contextlib.suppress(OSError):  # closed since it was listed
            if os.path.samestat(handle.stat(), lock):
                return True
    return False


def request_stop(run: Path, *, should_save: bool = True) -> None:
    """Make a run stop after its current step and save, or stop at once and lose steps.

    Raises:
        ProblemsFound: No process on this machine trains the run.
    """
    with open_training_process(run) as process:
        if should_save:
            process.send(signal.SIGTERM)
            return
        for _ in range(MAX_INTERRUPTS):
            process.send(signal.SIGINT)
            time.sleep(INTERRUPT_GAP_SECONDS)
            if not is_run_directory_locked(run / LOCK):
                return


def request_save(run: Path) -> None:
    """Make a run save a checkpoint after its current step and go on.

    Raises:
        ProblemsFound: No process on this machine trains the run.
    """
    with open_training_process(run) as process:
        process.send(signal.SIGUSR2)


def wait_until_ended(run: Path, timeout_seconds: float) -> str | None:
    """Return the state in which a run ended, or None if it has not within the time."""
    end = time.monotonic() + timeout_seconds
    while is_run_directory_locked(run / LOCK):
        if time.monotonic() > end:
            return None
        time.sleep(POLL_SECONDS)
    return str(read_json_or_empty(run / STATUS).get("state", "unknown"))
