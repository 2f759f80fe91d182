"""Requests to the process that trains a run: stop after the current step, stop at once, or save.

Slurm carries them to the ranks of a job on another host.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.launch.slurm_queue import find_training_job, forbid_requeue, signal_job
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


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The Slurm job that trains a run on another host.

    Args:
        run: Its run directory.
        job: Number of the job.
    """

    run: Path
    job: int

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its ranks."""
        signal_job(self.job, number.name.removeprefix("SIG"))


@contextmanager
def open_training(run: Path) -> Iterator[TrainingProcess | TrainingJob]:
    """Open the process that trains a run, so that its id cannot come to mean another one.

    Raises:
        ProblemsFound: Neither a process on this machine nor a Slurm job trains the run.
    """
    status = read_json_or_empty(run / STATUS)
    pid = status.get("pid")
    if status.get("state") not in ACTIVE_STATES:
        raise problem_error(
            "usage", f"no run is training in '{run}'", hint="pass the directory of a running run"
        )
    if is_elsewhere(status):
        job = find_training_job(run)
        if job is None:
            raise problem_error(
                "usage", f"the run trains on {status.get('host')}", hint="run this command there"
            )
        yield TrainingJob(run, job)
        return
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


def is_elsewhere(status: Mapping[str, object]) -> bool:
    """Return whether the process that wrote status.json runs on another host."""
    return (status.get("host"), status.get("boot_id")) != (socket.gethostname(), read_boot_id())


def is_training(run: Path) -> bool:
    """Return whether a run is training.

    The lock of another host may not be seen here: what it wrote to status.json counts.
    """
    if is_run_directory_locked(run / LOCK):
        return True
    status = read_json_or_empty(run / STATUS)
    return is_elsewhere(status) and status.get("state") in ACTIVE_STATES


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

    The Slurm job that trains it is not requeued.

    Raises:
        ProblemsFound: Neither a process on this machine nor a Slurm job trains the run.
    """
    with open_training(run) as training:
        job = find_training_job(run)
        if job is not None:
            forbid_requeue(job)
        if should_save:
            training.send(signal.SIGTERM)
            return
        for _ in range(MAX_INTERRUPTS):
            training.send(signal.SIGINT)
            time.sleep(INTERRUPT_GAP_SECONDS)
            if not is_training(run):
                return


def request_save(run: Path) -> None:
    """Make a run save a checkpoint after its current step and go on.

    Raises:
        ProblemsFound: Neither a process on this machine nor a Slurm job trains the run.
    """
    with open_training(run) as training:
        training.send(signal.SIGUSR2)


def wait_until_ended(run: Path, timeout_seconds: float) -> str | None:
    """Return the state in which a run ended, or None if it has not within the time."""
    end = time.monotonic() + timeout_seconds
    while is_training(run):
        if time.monotonic() > end:
            return None
        time.sleep(POLL_SECONDS)
    return str(read_json_or_empty(run / STATUS).get("state", "unknown"))
