"""Starts a run on this machine: one worker process, which takes the place of this one."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from titanrun.launch.config import LaunchConfig, LocalLaunchConfig

WORKER = "titanrun.worker"


def start(config: LaunchConfig, *, resolved: Path) -> NoReturn:
    """Replace this process by the worker of the run in `resolved`."""
    assert isinstance(config, LocalLaunchConfig)
    assert config.nproc_per_node in ("auto", 1), "more processes than one are refused by a rule"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", WORKER, str(resolved)])
