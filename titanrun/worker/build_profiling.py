"""What records how a run's steps go, as its profiling section asks for."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from titanrun.components.profiling.memory_snapshots import MemorySnapshots, has_history
from titanrun.components.profiling.traces import Traces
from titanrun.distributed.environment import set_default
from titanrun.recipe.recipe import Recipe
from titanrun.worker.job import Job
from titanrun.worker.length import steps_of

# above every level that the profiler's own library has: it tells stderr of each start and stop
SILENT = "99"

log = logging.getLogger(__name__)


@contextmanager
def profiled(
    recipe: Recipe, job: Job, device: torch.device, *, first_step: int
) -> Iterator[Callable[[int], None]]:
    """Within the block the run is recorded. Gives what to call after each step and all that was due after it."""
    config, run_dir, rank = recipe.profiling, job.resolved.parent, job.place.rank
    recorders: list[Traces | MemorySnapshots] = []
    with ExitStack() as stack:
        if config.enable_profiling:
            set_default("KINETO_LOG_LEVEL", SILENT)
            folder = run_dir / config.save_traces_folder
            traces = Traces(
                config,
                folder,
                rank=rank,
                device=device,
                first_step=first_step,
                last_step=steps_of(recipe),
            )
            recorders.append(stack.enter_context(traces))
        if config.enable_memory_snapshot and has_history(device):
            folder = run_dir / config.save_memory_snapshot_folder
            recorders.append(
                stack.enter_context(
                    MemorySnapshots(config, folder, rank=rank, device=device, first_step=first_step)
                )
            )
        elif config.enable_memory_snapshot:
            log.warning(
                "profiling.enable_memory_snapshot has no effect: the allocator of %s keeps no history",
                device,
            )

        def after_step(step: int) -> None:
            for recorder in recorders:
                recorder.after_step(step)

        yield after_step
