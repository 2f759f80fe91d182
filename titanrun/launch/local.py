"""Starts a run on this machine: one worker takes the place of this process, several are started and watched by it."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from titanrun.launch.config import LaunchConfig, LocalLaunchConfig
from titanrun.launch.environment import environment
from titanrun.launch.workers import HELD_BACK, WORKER, run_workers


def start(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """Train the run in `resolved` with so many workers. Returns the exit code, unless the one worker takes over."""
    assert isinstance(config, LocalLaunchConfig)
    if processes == 1:
        become_worker([str(resolved)], environment())
    sys.stdout.flush()
    sys.stderr.flush()
    return run_workers(resolved, processes)


def become_worker(arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by a worker."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    os.execve(sys.executable, [sys.executable, "-m", WORKER, *arguments], dict(variables))
