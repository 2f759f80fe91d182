"""Starts a run on this machine: one worker takes the place of this process, several are started and watched by it."""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from titanrun.components.checkpoints.manifest import is_checkpoint
from titanrun.config.counted import counted
from titanrun.launch.config import LaunchConfig, LocalLaunchConfig
from titanrun.launch.environment import environment, logs_json
from titanrun.launch.saying import say
from titanrun.launch.workers import HELD_BACK, SHELL_SIGNAL_BASE, WORKER, run_workers
from titanrun.recipe.notice import NOTIFY
from titanrun.recipe.saved import checkpoints_at

EXIT_HANG = 6
EXIT_INTERNAL = 70
DEADLY = {
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
}


def start(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """Train the run in `resolved` with so many workers. Returns the exit code, unless the one worker takes over."""
    assert isinstance(config, LocalLaunchConfig)
    # who wants to be told of the end is told of a SIGKILL too: somebody has to outlive the worker for that
    if processes == 1 and not config.max_restarts and not environment().get(NOTIFY):
        become_worker([str(resolved)], environment())
    return wait_for_workers(config, resolved=resolved, processes=processes)


def wait_for_workers(config: LocalLaunchConfig, *, resolved: Path, processes: int) -> int:
    """The same, with this process still there when the run has ended, also where it has one worker only."""
    sys.stdout.flush()
    sys.stderr.flush()
    return run_again(lambda: run_workers(resolved, processes), resolved.parent, config.max_restarts)


def run_again(run: Callable[[], int], run_dir: Path, max_restarts: int) -> int:
    """Runs the workers, and once more after a failure that may be the machine's, while there is progress. Returns the last exit code."""
    restarts, before = 0, newest_checkpoint(run_dir)
    while is_worth_another_start(code := run()):
        saved = newest_checkpoint(run_dir)
        restarts, before = (restarts if saved == before else 0), saved
        if restarts >= max_restarts:
            if max_restarts:
                note(f"{counted(restarts, 'restart')} brought no new checkpoint: giving up")
            return code
        restarts += 1
        place = "the beginning" if saved is None else f"step {saved}"
        note(
            f"exit code {code}: starting again from {place} (restart {restarts} of {max_restarts} without a new checkpoint)"
        )
    return code


def is_worth_another_start(exit_code: int) -> bool:
    """Whether a rank hung, died of a signal that nobody sends to end a run, or met a fault that may be passing."""
    return exit_code in (EXIT_HANG, EXIT_INTERNAL) or exit_code - SHELL_SIGNAL_BASE in DEADLY


def newest_checkpoint(run_dir: Path) -> int | None:
    """The last step that the run saved."""
    return max(
        (step for step, path in checkpoints_at(run_dir).items() if is_checkpoint(path)),
        default=None,
    )


def note(text: str) -> None:
    """A line about the launcher's own doing."""
    say(text if logs_json() else f"note: {text}")


def become_worker(arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by a worker."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    os.execve(sys.executable, [sys.executable, "-m", WORKER, *arguments], dict(variables))
