"""Runs the worker in a process of its own that has torch already, with a fault in it, and waits for its end."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.faults.seams import Seam, nothing
from titanrun.worker.main import main

CHECKPOINTS = "titanrun.components.checkpoints"
PRELOADED = ["titanrun.worker.main", f"{CHECKPOINTS}.dcp", f"{CHECKPOINTS}.huggingface", "tests.faults.processes"]
PATIENCE_SECONDS = 60


def work(resolved: Path, seam: Seam = nothing, *arguments: Any) -> int:
    """Trains in another process with a fault. Returns its exit code, below zero where a signal ended it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=train, args=(resolved, seam, arguments))
    process.start()
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        # into its log: where it stands
        os.kill(process.pid or 0, signal.SIGQUIT)
        time.sleep(1)
        process.kill()
        raise AssertionError("the worker hangs")
    return process.exitcode


def train(resolved: Path, seam: Seam, arguments: tuple[Any, ...]) -> None:
    """In a process of its own: what it says goes into a file beside the run."""
    torch.set_num_threads(1)
    said = os.open(resolved.parent / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    seam(*arguments)
    sys.exit(main([str(resolved)]))
