"""Runs workers in processes of their own that have torch already, with a fault in them, and waits
for their end."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.faults.seams import Seam, nothing
from titanrun.worker.__main__ import main

CHECKPOINTS = "titanrun.components.checkpoints"
PRELOADED = [
    "titanrun.worker.rank_main",
    f"{CHECKPOINTS}.dcp_io",
    "torch._dynamo",
    "titanrun.distributed.fsdp",
    "tests.faults.processes",
]
PATIENCE_SECONDS = 300

Fault = tuple[Any, ...]


def work(resolved: Path, seam: Seam = nothing, *arguments: Any) -> int:
    """Trains in another process with a fault. Returns its exit code, below zero where a signal
    ended it."""
    return work_together(resolved, {0: (seam, *arguments)}, count=1)[0]


def work_together(resolved: Path, faults: Mapping[int, Fault], count: int = 2) -> list[int]:
    """Trains on several ranks, some with a fault: a seam and its arguments. Returns the exit codes
    by rank; no launcher ends the others."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        port = meeting.getsockname()[1]
        ranks = [
            context.Process(
                target=train,
                args=(
                    resolved,
                    faults.get(rank, (nothing,)),
                    rank,
                    count,
                    port,
                    None if rank else meeting,
                ),
            )
            for rank in range(count)
        ]
        for process in ranks:
            process.start()
    end = time.monotonic() + PATIENCE_SECONDS
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    silent = [process for process in ranks if process.exitcode is None]
    for process in silent:
        # into its log: where it stands
        os.kill(process.pid or 0, signal.SIGQUIT)
        time.sleep(1)
        process.kill()
    assert not silent, f"{len(silent)} of {count} workers hang"
    return [process.exitcode or 0 for process in ranks]


def train(
    resolved: Path, fault: Fault, rank: int, count: int, port: int, meeting: socket.socket | None
) -> None:
    """In a process of its own: what it says goes into a file beside the run."""
    torch.set_num_threads(1)
    said = os.open(
        resolved.parent / ("said.txt" if rank == 0 else f"said-{rank}.txt"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    )
    os.dup2(said, 1)
    os.dup2(said, 2)
    if count > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_PORT": str(port),
        }
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "TITANRUN_STORE_SOCKET": str(meeting.fileno() if meeting else 0),
        }
    seam, *arguments = fault
    seam(*arguments)
    sys.argv = ["titanrun.worker", str(resolved)]
    sys.exit(main())
