"""Builders of metric output: metrics.jsonl, console, log file and trackers."""

import sys
from collections.abc import Collection
from itertools import chain, count

import torch

from titanrun.components.metrics.async_tracker import AsyncTracker
from titanrun.components.metrics.console_log import ConsoleLog
from titanrun.components.metrics.held_out_history import load_held_out_history
from titanrun.components.metrics.metric_logger import MetricLogger, Tracker
from titanrun.components.metrics.peak_flops import get_peak_flops
from titanrun.components.metrics.run_info import RunInfo
from titanrun.components.metrics.spec.metrics_file import MetricsFile, read_metrics
from titanrun.components.metrics.throughput import Throughput
from titanrun.config.base import dump_config
from titanrun.config.checksum import get_recipe_hash
from titanrun.config.redaction import redact, redact_data
from titanrun.config.secrets import get_secret_values
from titanrun.distributed.device import get_device_name
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.rank_env import get_environment_variables
from titanrun.models.shared.spec.flops import flops_per_token
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.worker.build.epochs_to_steps import get_num_steps, get_samples_per_step
from titanrun.worker.logging_setup import StepLogTracker
from titanrun.worker.worker_job import WorkerJob

METRICS_FILE = "metrics.jsonl"
# parent of a folder for each rank but the first, if all ranks write metrics
RANKS_FOLDER = "ranks"


def build_metric_logger(
    recipe: Recipe,
    job: WorkerJob,
    *,
    first_step: int,
    writes_run: bool = True,
    num_samples: int | None = None,
) -> MetricLogger:
    """Build the logger of metrics. The caller must close it.

    The first rank logs to all outputs, the others to their log file and their rank's own outputs.
    In a replica group the log file has a logger of its own, without `writes_run`. `num_samples` is
    the number of samples of an epoch, None for data without an end.
    """
    trackers: dict[str, Tracker] = {}
    if not writes_run or job.rank_info.group is None:
        trackers["log file"] = StepLogTracker()
    if not writes_run:
        return MetricLogger(trackers=trackers)
    rank, run_dir = job.rank_info.rank, job.resolved_path.parent
    if rank > 0:
        if not recipe.metrics.save_for_all_ranks:
            return MetricLogger(trackers=trackers)
        run_dir = run_dir / RANKS_FOLDER / f"rank-{rank}"
        run_dir.mkdir(parents=True, exist_ok=True)
    run_info = build_run_info(job.resolved_text) if recipe.metrics.trackers else None
    for config in recipe.metrics.trackers:
        trackers[get_unique_name(config.name, trackers)] = AsyncTracker(
            config.load_builder()(config, run_dir=run_dir, run_info=run_info)
        )
    file, colors = run_dir / METRICS_FILE, not recipe.metrics.disable_color_printing
    shows = rank == 0 and not job.rank_info.is_quiet
    console = (
        ConsoleLog(
            get_num_steps(recipe),
            sys.stderr,
            first_step=first_step,
            uses_colors=colors,
            is_json=job.rank_info.logs_json,
            steps_per_epoch=num_samples and num_samples / get_samples_per_step(recipe),
            held_out=load_held_out_history(
                # a fork may begin at a step of another run, without lines of its own
                read_metrics(file) if first_step and file.exists() else (),
                last_step=first_step,
            ),
        )
        if shows
        else None
    )
    return MetricLogger(MetricsFile(file), console, trackers)


def build_run_info(resolved_text: str) -> RunInfo:
    """Build the run description for trackers from the recipe as read, with unresolved secrets."""
    recipe = load_resolved_text(resolved_text)
    hidden = get_secret_values(get_environment_variables(), recipe)
    return RunInfo(
        name=str(recipe.name),
        resolved_yaml=redact(resolved_text, hidden),
        settings=redact_data(dump_config(recipe), hidden),
        recipe_hash=get_recipe_hash(resolved_text),
    )


def get_unique_name(name: str, taken_names: Collection[str]) -> str:
    """Return a tracker's name for messages, numbered if the name is already taken."""
    return next(
        text
        for text in chain([name], (f"{name} {number}" for number in count(2)))
        if text not in taken_names
    )


def build_throughput(
    recipe: Recipe, device: torch.device, meshes: ParallelMeshes | None
) -> Throughput:
    """Build the meter of tokens and FLOPs per second for this model on this device."""
    ranks_per_sequence = (
        1 if meshes is None else meshes.parallel_dims.world_size // meshes.parallel_dims.dp_size
    )
    flops = flops_per_token(recipe.model, recipe.training.seq_len)
    return Throughput(
        flops_per_token=flops,
        peak_flops=get_peak_flops(get_device_name(device)),
        device=device,
        ranks_per_sequence=ranks_per_sequence,
    )
