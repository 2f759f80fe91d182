"""Where a run's numbers go: metrics.jsonl, the console, the log file, and the recipe's trackers."""

import sys
from pathlib import Path

import torch

from titanrun.components.metrics.console import ConsoleLog
from titanrun.components.metrics.jsonl import MetricsFile
from titanrun.components.metrics.log import MetricLog, Tracker
from titanrun.components.metrics.peaks import peak_flops
from titanrun.components.metrics.throughput import Throughput
from titanrun.distributed.device import device_name
from titanrun.models.shared.counting import flops_per_token
from titanrun.recipe.recipe import Recipe
from titanrun.worker.length import steps_of
from titanrun.worker.talk import StepLines

METRICS_FILE = "metrics.jsonl"


def build_metric_log(recipe: Recipe, run_dir: Path, *, first_step: int) -> MetricLog:
    """What every logged step is passed to. Close it at the end."""
    trackers: dict[str, Tracker] = {"log file": StepLines()}
    for config in recipe.metrics.trackers:
        trackers[config.name] = config.builder()(config, run_dir=run_dir)
    colors = not recipe.metrics.disable_color_printing
    console = ConsoleLog(steps_of(recipe), sys.stderr, first_step=first_step, colors=colors)
    return MetricLog(MetricsFile(run_dir / METRICS_FILE), console, trackers)


def build_throughput(recipe: Recipe, device: torch.device) -> Throughput:
    """Tokens and FLOP per second of this model on this device."""
    flops = flops_per_token(recipe.model, recipe.training.seq_len)
    return Throughput(flops_per_token=flops, peak_flops=peak_flops(device_name(device)), device=device)
