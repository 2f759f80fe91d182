"""Builder of the training loop from ranks, step source, metrics and hooks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.config.lazy_module import LazyModule
from titanrun.distributed.device import select_device
from titanrun.distributed.freed_memory import keep_freed_memory
from titanrun.distributed.heartbeat import on_heartbeat
from titanrun.recipe.recipe import Recipe
from titanrun.training.loop import TrainLoop
from titanrun.training.loop_config import LoopConfig
from titanrun.training.recovery_budget import RecoveryBudget
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.synced_signals import SyncedSignals
from titanrun.training.watchdog import Watchdog
from titanrun.worker.build.build_checkpoints import is_saving_enabled
from titanrun.worker.build.build_data_source import build_data_source
from titanrun.worker.build.build_metrics import build_metric_logger, build_throughput
from titanrun.worker.build.build_profiling import maybe_enable_profiling
from titanrun.worker.build.build_step_hooks import (
    build_nonfinite_guard,
    build_step_hooks,
    build_watchdog,
)
from titanrun.worker.build.epochs_to_steps import get_num_steps
from titanrun.worker.build.source_parts import LoopParts, SourceBuilder, SourceParts
from titanrun.worker.process_group_setup import init_distributed
from titanrun.worker.worker_job import WorkerJob

if TYPE_CHECKING:
    from titanrun.worker.build import build_replica_groups
else:
    # imported only for replica groups: it imports torchft
    build_replica_groups = LazyModule("titanrun.worker.build.build_replica_groups")


@contextmanager
def build_train_loop(
    recipe: Recipe,
    job: WorkerJob,
    *,
    signals: SignalRequests,
    on_step: Callable[[int], None] = lambda step: None,
    source: SourceBuilder = build_data_source,
) -> Iterator[TrainLoop]:
    """Build the loop with its initial or resumed state, and close it after the block.

    Args:
        recipe: the recipe of the run that the job describes.
        job: files of the run, and the rank of this process.
        signals: requests to stop or save, already installed.
        on_step: called with the number of each completed step.
        source: builds the step source with the engine and the checkpoints.
    """
    device = select_device(recipe.device, local_rank=job.rank_info.local_rank)
    with (
        open_watchdog(recipe, job) as watchdog,
        init_distributed(recipe, job, device) as meshes,
        torch.autograd.set_detect_anomaly(recipe.debug.detect_anomaly),
        ExitStack() as stack,
    ):
        parts = source(recipe, job, device, meshes, stack)
        recipe, first_step = parts.recipe, parts.state.step
        loop = build_loop_parts(
            parts, job, signals if meshes is None else SyncedSignals(signals, device)
        )
        metrics = stack.enter_context(loop.metrics)
        # ranks that are done wait for the files of the main rank
        stack.enter_context(closing(watchdog))
        after_step = stack.enter_context(
            maybe_enable_profiling(recipe, job, device, first_step=first_step)
        )
        stack.enter_context(keep_freed_memory(device))
        yield loop.build(
            engine=parts.engine,
            state=parts.state,
            config=build_loop_config(recipe, stop_after_step=job.rank_info.stop_after_step),
            metrics=metrics,
            step_metrics=StepMetrics(device),
            throughput=build_throughput(recipe, device, meshes),
            guard=build_nonfinite_guard(recipe, device),
            recovery=RecoveryBudget(recipe.guard),
            watchdog=watchdog,
            hooks=build_step_hooks(
                parts, job, meshes, on_step=on_step, after_step=after_step, watchdog=watchdog
            ),
        )


def build_loop_parts(
    parts: SourceParts, job: WorkerJob, signals: SignalRequests | SyncedSignals
) -> LoopParts:
    """Build what differs between runs with and without replica groups."""
    if parts.recipe.fault_tolerance.enable:
        return build_replica_groups.build_group_loop_parts(parts, job, signals)
    return LoopParts(
        partial(
            TrainLoop,
            source=parts.source,
            signals=signals,
            checkpoints=parts.checkpoints if is_saving_enabled(parts.recipe.checkpoint) else None,
        ),
        build_metric_logger(
            parts.recipe,
            job,
            first_step=parts.state.step,
            num_samples=parts.dataloader.num_samples,
        ),
    )


@contextmanager
def open_watchdog(recipe: Recipe, job: WorkerJob) -> Iterator[Watchdog]:
    """Watch this rank for hangs, and count each heartbeat within the block as progress."""
    with build_watchdog(recipe, job) as watchdog, on_heartbeat(watchdog.record_heartbeat):
        yield watchdog


def build_loop_config(recipe: Recipe, *, stop_after_step: int | None) -> LoopConfig:
    """Build the step counts and intervals of the loop."""
    return LoopConfig(
        steps=get_num_steps(recipe),
        log_every=recipe.metrics.log_freq,
        stop_after_step=stop_after_step,
    )
