"""Trains a recipe on several gloo ranks as the worker does, and keeps what it computed, to be held
against one process.

A layout is one line of test_layouts.py: its name, its ranks, and overrides on the debug recipe.
"""

import atexit
import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from traceback import format_exc
from typing import Any

import pytest
import torch
from torch import Tensor

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.dtensor import full_tensor
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.recipe.trainer_kinds import load_trainer_builder
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.worker_job import rendezvous

ROOT = Path(__file__).parents[2]
# a smaller model, several passes a step on one rank, every number logged
TEXT = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 4}}
training: {{global_batch_size: 8}}
checkpoint: {{enable: false}}
validation: {{enable: true, freq: 5, steps: 3}}
"""
# for base: two layers of four experts, of which a token meets two
SIZES = (
    "dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: 2, moe: {num_experts: 4, top_k: 2, "
    "hidden_dim: 96}"
)
EXPERTS = (f"model={{name: qwen3, flavor: debugmodel_moe, {SIZES}}}",)
# what a rank imports before it is forked: seconds, once for all of them
PRELOADED = [
    "torch._dynamo",
    "titanrun.components.data.tiny_dataset",
    "titanrun.components.tokenizers.huggingface",
    "titanrun.distributed.fsdp",
    "titanrun.models.llama3.model",
    "titanrun.worker.build.build_train_loop",
    "titanrun.worker.rank_main",
    "tests.distributed.ranks",
]
NUMBERS = (
    "loss",
    "grad_norm",
    "validation/loss",
    "validation/accuracy",
    "moe/imbalance",
    "moe/most_tokens_per_expert",
)
PATIENCE_SECONDS = 300

Look = Callable[[TrainLoop], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A layout. `overrides` are its own; `base` apply to the one process it is compared with as
    well."""

    name: str
    nproc: int
    overrides: tuple[str, ...]
    base: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run logged, by step, the whole gradients of its first step by name, and what `look`
    saw, both from each rank."""

    folder: Path
    numbers: list[dict[str, float]]
    gradients: list[dict[str, Tensor]]
    build_mask: list[Any]


def case(
    name: str,
    *,
    nproc: int,
    overrides: Sequence[str] = (),
    base: Sequence[str] = (),
    slow: bool = False,
) -> object:
    """One layout for `pytest.mark.parametrize`."""
    return pytest.param(
        Case(name, nproc, tuple(overrides), tuple(base)),
        id=name,
        marks=[pytest.mark.slow] if slow else [],
    )


def nothing(trainer: TrainLoop) -> None:
    """Looks at nothing."""


@cache
def alone(base: tuple[str, ...]) -> Trained:
    """The run on one process: once for all layouts that are compared with it."""
    return train(1, base)


def train(
    nproc: int, overrides: Sequence[str], *, folder: Path | None = None, look: Look = nothing
) -> Trained:
    """Trains on `nproc` ranks. Fails the test where a rank fails.

    Args:
        nproc: how many.
        overrides: on the recipe.
        folder: the run directory; a new one unless one is given.
        look: a function of a module, which each rank calls with its trainer after the last step.
    """
    folder = folder or Path(mkdtemp(dir=scratch()))
    for old in (
        path for what in ("gradients", "seen", "error") for path in folder.glob(f"{what}-*")
    ):
        old.unlink()
    recipe, resolved = folder / "recipe.yaml", folder / "resolved.yaml"
    recipe.write_text(TEXT)
    resolved.write_text(resolve_recipe(str(recipe), overrides, environment={}, ranks=nproc).text)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        port = meeting.getsockname()[1]
        places = [
            RankInfo(rank=rank, local_rank=rank, world_size=nproc, store_port=port)
            for rank in range(nproc)
        ]
        ranks = [
            context.Process(
                target=run_rank,
                args=(resolved, place, meeting if place.is_main_rank else None, look),
            )
            for place in places
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
    assert [process.exitcode for process in ranks] == [0] * nproc
    lines = [
        {name: line[name] for name in NUMBERS if name in line}
        for line in read_metrics(folder / "metrics.jsonl")
    ]
    gradients, seen = (taken(sorted(folder.glob(f"{what}-*.pt"))) for what in ("gradients", "seen"))
    return Trained(folder, lines, gradients, seen)


@cache
def scratch() -> Path:
    """Where the runs lie that no test named a place for; gone with the process."""
    folder = Path(mkdtemp(prefix="titanrun-ranks-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder


def taken(files: Sequence[Path]) -> list[Any]:
    """What lies in the files, which are large and many, and therefore do not stay."""
    found = [torch.load(path, weights_only=True) for path in files]
    for path in files:
        path.unlink()
    return found


def run_rank(resolved: Path, place: RankInfo, meeting: socket.socket | None, look: Look) -> None:
    """In a process of its own: trains as this rank, by the worker's own parts."""
    torch.set_num_threads(1)
    if meeting is not None:
        place = replace(place, store_socket=meeting.fileno())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place.store_port))
    try:
        recipe = load_resolved(resolved)
        build = load_trainer_builder(recipe.kind)
        with (
            SignalRequests() as signals,
            build(recipe, rendezvous(resolved, place), signals=signals) as trainer,
        ):
            keep_gradients(trainer, resolved.parent / f"gradients-{place.rank}.pt")
            trainer.train()
            torch.save(look(trainer), resolved.parent / f"seen-{place.rank}.pt")
    except Exception:
        (resolved.parent / f"error-{place.rank}.txt").write_text(
            f"rank {place.rank}: {format_exc()}"
        )
        os._exit(1)


def keep_gradients(trainer: TrainLoop, path: Path) -> None:
    """Writes the whole gradients of the first step, before they are clipped, into a file."""
    engine, norm = trainer.engine, trainer.engine._compute_grad_norm

    def noting(parameters: Sequence[Tensor]) -> Tensor:
        found = norm(parameters)
        if not path.exists():
            torch.save(
                {
                    name: full_tensor(weight.grad)
                    for name, weight in engine.model.named_parameters()
                    if weight.grad is not None
                },
                path,
            )
        return found

    engine._compute_grad_norm = noting  # type: ignore[method-assign]
