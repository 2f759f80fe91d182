"""titanrun's trainer against the bare loop, in turn, in one process.

Both have the same model, the same rows and the same threads.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bare_loop
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.distributed.rank_env import read_rank_info
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.data_source import DataSource
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

# wall and CPU seconds of each step of the loop to compare with
BareSteps = Callable[[Recipe, TrainLoop], Iterator[tuple[float, float]]]
QUIET = ("checkpoint.enable=false", "validation.enable=false", "metrics.log_freq=10")


@dataclass(frozen=True)
class Comparison:
    """Seconds a step of both, block by block."""

    titanrun: list[float]
    bare: list[float]
    titanrun_cpu: list[float]
    bare_cpu: list[float]
    tokens_per_step: int

    @property
    def ratios(self) -> list[float]:
        """Tokens a second of titanrun as a share of the bare loop's, pair by pair."""
        return [bare / ours for ours, bare in zip(self.titanrun, self.bare, strict=True)]

    @property
    def overhead_seconds(self) -> float:
        """CPU seconds that titanrun adds to a step: the median over the pairs."""
        return statistics.median(
            ours - bare for ours, bare in zip(self.titanrun_cpu, self.bare_cpu, strict=True)
        )


def compare(
    recipe_file: str,
    overrides: list[str],
    *,
    blocks: int,
    steps_per_block: int,
    threads: int | None,
    ranks: int = 1,
    bare: BareSteps | None = None,
) -> Comparison:
    """Run blocks of steps, titanrun and bare in turn.

    One block of each comes first and does not count. With several ranks, each rank runs all of it.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        resolved = resolve_recipe(recipe_file, [*QUIET, *overrides], environment={}, ranks=ranks)
        path = Path(folder) / "resolved.yaml"
        path.write_text(resolved.text, encoding="utf-8")
        (Path(folder) / "logs").mkdir()
        quiet = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(redirect_stderr(quiet))
        with build_train_loop(
            resolved.run, rendezvous(path, read_rank_info()), signals=SignalRequests()
        ) as trainer:
            source: Any = trainer.source
            steps = (bare or bare_steps)(resolved.run, trainer)
            return measure(
                trainer,
                steps,
                blocks=blocks,
                steps=steps_per_block,
                tokens=source.tokens_per_step,
            )


def bare_steps(recipe: Recipe, trainer: TrainLoop) -> Iterator[tuple[float, float]]:
    """Run the bare loop over a second model of the same sizes.

    It reads the same rows from their beginning.
    """
    device = trainer.engine.device
    model = recipe.model.load_builder()(recipe.model, seq_len=recipe.training.seq_len).to_empty(
        device=device
    )
    model.init_weights()
    rows = same_rows(recipe, trainer)
    bfloat16 = recipe.training.mixed_precision_param == "bfloat16"
    max_norm = recipe.training.max_norm
    assert max_norm is not None
    return bare_loop.train(
        model, rows, lr=recipe.optimizer.lr, max_norm=max_norm, device=device, bfloat16=bfloat16
    )


def same_rows(recipe: Recipe, trainer: TrainLoop) -> Iterator[Tensor]:
    """Deal the trainer's rows from a loader of their own."""
    training, source = recipe.training, trainer.source
    assert isinstance(source, DataSource)
    loader = DistributedDataLoader(
        source.dataloader.dataset,  # type: ignore[attr-defined]
        seed=recipe.debug.seed,
        shuffle=training.dataset.shuffle,
        repeat=True,
        global_batch_size=training.global_batch_size,
    )
    while True:
        yield torch.from_numpy(loader.next_samples())


def measure(
    trainer: TrainLoop, bare: Iterator[tuple[float, float]], *, blocks: int, steps: int, tokens: int
) -> Comparison:
    """Alternating blocks; the first pair warms both up."""
    pairs = []
    for _ in range(blocks + 1):
        ours = titanrun_block(trainer, steps)
        bare_block = list(islice(bare, steps))
        pairs.append((ours, tuple(sum(column) / steps for column in zip(*bare_block, strict=True))))
    counted = pairs[1:]
    return Comparison(
        titanrun=[ours[0] for ours, _ in counted],
        bare=[other[0] for _, other in counted],
        titanrun_cpu=[ours[1] for ours, _ in counted],
        bare_cpu=[other[1] for _, other in counted],
        tokens_per_step=tokens,
    )


def titanrun_block(trainer: TrainLoop, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds a step of the trainer's own loop."""
    trainer.config = replace(trainer.config, steps=trainer.state.step + steps)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.train()
    if trainer.engine.device.type != "cpu":
        torch.accelerator.synchronize()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps
