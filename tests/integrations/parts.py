"""Engines on several gloo ranks, each a process with a process group of its own making, which the
engine takes over."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from traceback import format_exc
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.ranks import PRELOADED
from tests.rl.parts import TEXT

PATIENCE_SECONDS = 300
# the same model without what is of RL, which pipelines do not take
PRETRAIN = (
    TEXT[: TEXT.index("rl:\n")]
    .replace("kind: rl", "kind: pretrain")
    .replace("{name: string_task, count: 64}", "tiny")
    .replace("mask: block_causal", "mask: causal")
)


def on_ranks(count: int, work: Callable[..., Any], folder: Path, *given: Any) -> list[Any]:
    """What `work(*given)`, a function of a module, gives on each of `count` ranks. Fails the test
    where a rank fails."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [
        context.Process(target=run_rank, args=(rank, count, work, folder, given))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
    silent = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in silent:
        processes[rank].kill()
    errors = "".join(path.read_text() for path in sorted(folder.glob("error-*.txt")))
    assert not silent and not errors, f"ranks {silent} hang; errors: {errors}"
    assert [process.exitcode for process in processes] == [0] * count
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(count)]


def run_rank(
    rank: int, count: int, work: Callable[..., Any], folder: Path, given: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(folder / "store"), count), rank=rank, world_size=count
        )
        torch.save(work(*given), folder / f"found-{rank}.pt")
        dist.destroy_process_group()
    except Exception:
        (folder / f"error-{rank}.txt").write_text(f"rank {rank}: {format_exc()}")
        os._exit(1)
