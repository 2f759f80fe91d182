"""Where a run's numbers go: metrics.jsonl, the console, the log file, and the recipe's trackers."""

import sys
from collections.abc import Collection
from itertools import chain, count

import torch

from titanrun.components.metrics.background import BackgroundTracker
from titanrun.components.metrics.console import ConsoleLog
from titanrun.components.metrics.jsonl import MetricsFile
from titanrun.components.metrics.log import MetricLog, Tracker
from titanrun.components.metrics.peaks import peak_flops
from titanrun.components.metrics.throughput import Throughput
from titanrun.components.metrics.tracked import TrackedRun
from titanrun.config.base import dump
from titanrun.config.masking import masked, masked_data
from titanrun.config.secrets import values_to_hide
from titanrun.config.signature import recipe_hash
from titanrun.distributed.device import device_name
from titanrun.distributed.environment import variables
from titanrun.distributed.mesh import Meshes
from titanrun.models.shared.counting import flops_per_token
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.worker.job import Job
from titanrun.worker.length import steps_of
from titanrun.worker.talk import StepLines

METRICS_FILE = "metrics.jsonl"
# in it a folder for each rank but the first, where all write their metrics
RANKS_FOLDER = "ranks"


def build_metric_log(recipe: Recipe, job: Job, *, first_step: int) -> MetricLog:
    """What every logged step is passed to: on the first rank all there is, on the others their log file
    and what is the rank's own. Close it at the end."""
    trackers: dict[str, Tracker] = {"log file": StepLines()}
    rank, run_dir = job.place.rank, job.resolved.parent
    if rank > 0:
        if not recipe.metrics.save_for_all_ranks:
            return MetricLog(trackers=trackers)
        run_dir = run_dir / RANKS_FOLDER / f"rank-{rank}"
        run_dir.mkdir(parents=True, exist_ok=True)
    told = tracked_run(job.text) if recipe.metrics.trackers else None
    for config in recipe.metrics.trackers:
        trackers[label(config.name, trackers)] = BackgroundTracker(
            config.builder()(config, run_dir=run_dir, tracked=told)
        )
    colors = not recipe.metrics.disable_color_printing
    shows = rank == 0 and not job.place.is_quiet
    console = (
        ConsoleLog(
            steps_of(recipe),
            sys.stderr,
            first_step=first_step,
            colors=colors,
            as_json=job.place.logs_json,
        )
        if shows
        else None
    )
    return MetricLog(MetricsFile(run_dir / METRICS_FILE), console, trackers)


def tracked_run(text: str) -> TrackedRun:
    """What trackers are told of the run: its recipe as it was read, where secrets are still references."""
    recipe = read_resolved_text(text)
    hidden = values_to_hide(variables(), recipe)
    return TrackedRun(
        name=str(recipe.name),
        resolved=masked(text, hidden),
        settings=masked_data(dump(recipe), hidden),
        recipe_hash=recipe_hash(text),
    )


def label(name: str, taken: Collection[str]) -> str:
    """What messages call a tracker: its name, numbered where it is not the first of that name."""
    return next(
        text
        for text in chain([name], (f"{name} {number}" for number in count(2)))
        if text not in taken
    )


def build_throughput(recipe: Recipe, device: torch.device, meshes: Meshes | None) -> Throughput:
    """Tokens and FLOP per second of this model on this device."""
    ranks_per_row = 1 if meshes is None else meshes.degrees.ranks // meshes.degrees.batch
    flops = flops_per_token(recipe.model, recipe.training.seq_len)
    return Throughput(
        flops_per_token=flops,
        peak_flops=peak_flops(device_name(device)),
        device=device,
        ranks_per_row=ranks_per_row,
    )
