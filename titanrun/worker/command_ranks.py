"""Ranks of a command that split a model over several processes."""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from titanrun.distributed.config import CommConfig
from titanrun.distributed.device import select_device
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import (
    create_store,
    is_process_group_initialized,
    open_process_group,
)
from titanrun.distributed.rank_env import RankInfo, read_rank_info
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.run_files import write_indented_json
from titanrun.worker.__main__ import exit_immediately
from titanrun.worker.worker_failures import classify_failure


@contextmanager
def init_tensor_parallel(recipe: Recipe) -> Iterator[ParallelMeshes]:
    """Make the launcher's processes the tensor-parallel ranks of one model in the block."""
    rank_info, comm = read_rank_info(), CommConfig()
    device = select_device(recipe.device, local_rank=rank_info.local_rank)
    store = create_store(rank_info, timeout_seconds=comm.init_timeout_seconds)
    with open_process_group(store, rank_info, device=device, comm=comm):
        yield ParallelMeshes(ParallelDims(tp=rank_info.world_size), device)


def run_as_rank(work: Callable[[bool], None]) -> int:
    """Call `work` with whether this is the main rank, and return the exit code.

    The launcher reports the reason of a failure once for all ranks.
    """
    rank_info = read_rank_info()
    try:
        work(rank_info.is_main_rank)
    except Exception as error:
        code = write_failure_file(error, rank_info)
        if is_process_group_initialized():
            exit_immediately(code)
        return code
    return 0


def write_failure_file(error: BaseException, rank_info: RankInfo) -> int:
    """Write the reason of this process's failure for the launcher, and return the exit code."""
    failure = classify_failure(error)
    text = (
        "".join(traceback.format_exception(error)) + failure.text
        if failure.is_internal
        else failure.text
    )
    assert rank_info.failure_file is not None
    record = {
        "time": time.time(),
        "is_of_another": failure.is_peer_failure,
        "text": text,
        "exit_code": failure.exit_code,
    }
    write_indented_json(rank_info.failure_file, record)
    return failure.exit_code
