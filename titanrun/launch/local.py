"""Starts a run on this machine: one worker process, which takes the place of this one."""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from titanrun.launch.config import LaunchConfig, LocalLaunchConfig

WORKER = "titanrun.worker"
# a new process dies of these until it listens for them: blocked, they wait, and the worker unblocks them then
HELD_BACK = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


def start(config: LaunchConfig, *, resolved: Path) -> NoReturn:
    """Replace this process by the worker of the run in `resolved`."""
    assert isinstance(config, LocalLaunchConfig)
    assert config.nproc_per_node in ("auto", 1), "more processes than one are refused by a rule"
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    os.execv(sys.executable, [sys.executable, "-m", WORKER, str(resolved)])
