"""Calls a function on several gloo ranks, without a recipe: for what a few tensors show."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from traceback import format_exc
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.ranks import PATIENCE_SECONDS, PRELOADED


def call_on_ranks(nproc: int, function: Callable[[], Any], folder: Path) -> list[Any]:
    """What `function`, which a module defines, returns on each rank. Fails where a rank fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ranks = [
        context.Process(target=call_on_rank, args=(rank, nproc, function, folder))
        for rank in range(nproc)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(PATIENCE_SECONDS)
    silent = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for rank in silent:
        ranks[rank].kill()
    errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
    assert not silent and not errors, f"ranks {silent} hang; errors: {''.join(errors)}"
    return [torch.load(folder / f"found-{rank}.pt", weights_only=True) for rank in range(nproc)]


def call_on_rank(rank: int, nproc: int, function: Callable[[], Any], folder: Path) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(folder / "store"), nproc)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=nproc)
        torch.save(function(), folder / f"found-{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        (folder / f"error-{rank}.txt").write_text(f"rank {rank}: {format_exc()}")
        os._exit(1)
