"""Launcher of a run on this machine.

One worker replaces this process; several workers are started and monitored by it.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from titanrun.components.checkpoints.spec.manifest import is_checkpoint
from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.config.exit_codes import (
    EXIT_HANG,
    EXIT_INTERNAL,
    EXIT_NO_QUORUM,
    SHELL_SIGNAL_BASE,
)
from titanrun.config.pluralize import pluralize
from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.launch.config import LaunchConfig, LocalLaunchConfig
from titanrun.launch.launch_env import get_environment, is_json_log_format
from titanrun.launch.launcher_log import log_line
from titanrun.launch.worker_processes import WORKER, run_workers
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.recipe.rundir.run_notification import NOTIFY_VARIABLE

FATAL_SIGNALS = {
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
}


def start_local_run(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """Train the run in `resolved` with `processes` workers.

    Return the exit code, unless the only worker replaces this process.
    """
    assert isinstance(config, LocalLaunchConfig)
    # a notify command must also report a SIGKILL: a process has to outlive the worker for that
    if processes == 1 and not config.max_restarts and not get_environment().get(NOTIFY_VARIABLE):
        exec_worker([str(resolved)], get_environment())
    return supervise_workers(config, resolved=resolved, processes=processes)


def supervise_workers(config: LocalLaunchConfig, *, resolved: Path, processes: int) -> int:
    """Train the run and return the exit code.

    This process stays until the end of the run, even with one worker.
    """
    drain_console()
    with open_lifeline(is_needed=config.max_restarts > 0) as lifeline:
        return run_with_restarts(
            lambda: run_workers(resolved, processes, lifeline=lifeline),
            resolved.parent,
            config.max_restarts,
        )


@contextmanager
def open_lifeline(*, is_needed: bool) -> Iterator[int | None]:
    """Give the reading end of a pipe that ends with this process, however it ends.

    What outlives a restart of the workers ends with it.
    """
    if not is_needed:
        yield None
        return
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def run_with_restarts(run_once: Callable[[], int], run_dir: Path, max_restarts: int) -> int:
    """Run the workers, and restart them after failures of the machine while there is progress.

    Return the last exit code.
    """
    restarts, before = 0, find_latest_checkpoint_step(run_dir)
    while is_restartable(code := run_once()):
        saved = find_latest_checkpoint_step(run_dir)
        restarts, before = (restarts if saved == before else 0), saved
        if restarts >= max_restarts:
            if max_restarts:
                log_note(f"{pluralize(restarts, 'restart')} without a new checkpoint: giving up")
            return code
        restarts += 1
        place = "the beginning" if saved is None else f"step {saved}"
        log_note(
            f"exit code {code}: restarting from {place} "
            f"(restart {restarts} of {max_restarts} without a new checkpoint)"
        )
    return code


def is_restartable(exit_code: int) -> bool:
    """Return whether the failure may be transient.

    A rank hung, died of a signal that nobody sends to end a run, or failed with a possibly
    transient fault.
    """
    return (
        exit_code in (EXIT_HANG, EXIT_NO_QUORUM, EXIT_INTERNAL)
        or exit_code - SHELL_SIGNAL_BASE in FATAL_SIGNALS
    )


def find_latest_checkpoint_step(run_dir: Path) -> int | None:
    """Return the last step that the run saved."""
    return max(
        (step for step, path in get_checkpoints_by_step(run_dir).items() if is_checkpoint(path)),
        default=None,
    )


def log_note(text: str) -> None:
    """Write a note of the launcher."""
    log_line(text if is_json_log_format() else f"note: {text}")


def exec_worker(arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by a worker."""
    drain_console()
    signal.pthread_sigmask(signal.SIG_BLOCK, list_run_signals())
    os.execve(sys.executable, [sys.executable, "-m", WORKER, *arguments], dict(variables))
