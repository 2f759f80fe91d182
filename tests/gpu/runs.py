"""Runs of the debug model, two layers of width 256, in the process of the tests."""

from collections.abc import Callable
from pathlib import Path

import torch

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

ROOT = Path(__file__).parents[2]
SMALL = (
    "model.n_layers=2",
    "training.local_batch_size=2",
    "training.seq_len=128",
    "validation.enable=false",
    "lr_scheduler.warmup_steps=2",
)
UNSAVED = "checkpoint.enable=false"
LOGGED = "metrics.log_freq=1"

Look = Callable[[TrainLoop], None]


def resolve_run(folder: Path, device: torch.device, *overrides: str) -> Path:
    """Write the resolved recipe into the folder, which becomes a run directory."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    kind = "cpu" if device.type == "cpu" else "gpu"
    # a setting may be given once
    given = dict(each.split("=", 1) for each in (f"device={kind}", *SMALL, *overrides))
    recipe, wanted = (
        str(ROOT / "recipes/llama3_debug.yaml"),
        [f"{path}={value}" for path, value in given.items()],
    )
    text = resolve_recipe(recipe, wanted, environment={}, ranks=1).text
    path = folder / "resolved.yaml"
    path.write_text(text)
    return path


def train(
    folder: Path, device: torch.device, *overrides: str, look: Look = lambda loop: None
) -> list[dict[str, float]]:
    """Train, and return the lines of metrics.jsonl. `look` gets the loop before its first step."""
    path = resolve_run(folder, device, *overrides)
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(path), rendezvous(path, RankInfo()), signals=signals
        ) as loop,
    ):
        look(loop)
        loop.train()
    return list(read_metrics(folder / "metrics.jsonl"))


def losses_of(lines: list[dict[str, float]]) -> list[float]:
    """The loss of each logged step."""
    return [line["loss"] for line in lines]
