"""Builder of the profilers that a recipe enables."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from titanrun.components.profiling.memory_snapshots import (
    MemorySnapshotWriter,
    can_record_memory_history,
)
from titanrun.components.profiling.profiler_traces import ProfilerTraceWriter
from titanrun.distributed.rank_env import set_variable_default
from titanrun.recipe.recipe import Recipe
from titanrun.worker.build.epochs_to_steps import get_num_steps
from titanrun.worker.worker_job import WorkerJob

# above all log levels of the profiler's library, which logs each start and stop to stderr
KINETO_SILENT_LEVEL = "99"

log = logging.getLogger(__name__)


@contextmanager
def maybe_enable_profiling(
    recipe: Recipe, job: WorkerJob, device: torch.device, *, first_step: int
) -> Iterator[Callable[[int], None]]:
    """Profile the run within the block.

    Yield the function to call after each step and everything that follows it.
    """
    config, run_dir, rank = recipe.profiling, job.resolved_path.parent, job.rank_info.rank
    recorders: list[ProfilerTraceWriter | MemorySnapshotWriter] = []
    with ExitStack() as stack:
        if config.enable_profiling:
            set_variable_default("KINETO_LOG_LEVEL", KINETO_SILENT_LEVEL)
            folder = run_dir / config.save_traces_folder
            traces = ProfilerTraceWriter(
                config,
                folder,
                rank=rank,
                device=device,
                first_step=first_step,
                last_step=get_num_steps(recipe),
            )
            recorders.append(stack.enter_context(traces))
        if config.enable_memory_snapshot and can_record_memory_history(device):
            folder = run_dir / config.save_memory_snapshot_folder
            recorders.append(
                stack.enter_context(
                    MemorySnapshotWriter(
                        config, folder, rank=rank, device=device, first_step=first_step
                    )
                )
            )
        elif config.enable_memory_snapshot:
            log.warning(
                "profiling.enable_memory_snapshot has no effect: "
                "the allocator of %s records no history",
                device,
            )

        def after_step(step: int) -> None:
            for recorder in recorders:
                recorder.on_step_end(step)

        yield after_step
