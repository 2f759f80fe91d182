"""A run of 20 steps may stop after any of them: the next one is bitwise the same, and so by
induction is all that follows."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from titanrun.components.checkpoints.spec.hashed_file import FileEntry
from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
STEPS = 20
# two passes a step, shuffled data of which the third epoch begins, every layer recomputed
SETTINGS = [
    "training.steps=20",
    "activation_checkpoint=full",
    "checkpoint.interval=1",
    "checkpoint.keep_latest_k=0",
]


def train(resolved: Path, *, until: int = STEPS) -> list[NDArray[np.int64]]:
    """Trains until a step is done. Gives the rows read."""

    def stop(step: int) -> None:
        if step == until:
            os.kill(os.getpid(), signal.SIGTERM)

    seen = []
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals, on_step=stop
        ) as trainer,
    ):
        source: Any = trainer.source
        next_rows = source.dataloader.next_samples
        source.dataloader.next_samples = lambda: seen.append(next_rows()) or seen[-1]
        trainer.train()
    return seen


def content(resolved: Path, step: int) -> dict[str, FileEntry]:
    """Digests of weights, optimizer state, counters, data position and random states."""
    files = dict(read_manifest(resolved.parent / "checkpoint" / f"step-{step}").files)
    # it names the folder and a number of its own
    del files[".metadata"]
    return files


def test_a_stop_after_any_of_20_steps_changes_no_bit(run: Run) -> None:
    uncut = run("uncut", *SETTINGS)
    rows = train(uncut)
    assert [batch.shape for batch in rows] == [(4, 17)] * STEPS
    epochs = np.concatenate(rows)[:60].reshape(2, 30, 17)
    assert not np.array_equal(epochs[0], epochs[1])
    for step in range(1, STEPS):
        resolved = run(f"from-{step}", *SETTINGS)
        name = f"checkpoint/step-{step}"
        shutil.copytree(uncut.parent / name, resolved.parent / name)
        (batch,) = train(resolved, until=step + 1)
        assert np.array_equal(batch, rows[step]), step
        assert content(resolved, step + 1) == content(uncut, step + 1), step


OPTIMIZERS = {
    "adamw": "adamw",
    "muon": "{name: muon, ns_dtype: float32, no_decay: [norms], param_groups: [{match: "
    "['layers.0.*'], lr: 1.0e-3}]}",
    "schedule_free": "schedule_free_adamw",
    "sgd": "{name: sgd, momentum: 0.9}",
    "bf16_states": "{name: adamw, state_dtype: bfloat16}",
}


@pytest.mark.parametrize(
    "name",
    [
        *("adamw", "schedule_free"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("muon", "sgd", "bf16_states")),
    ],
)
def test_the_rest_of_the_run_follows_too(run: Run, tokens: Path, name: str) -> None:
    # held-out rows are evaluated on one side of the stop
    held_out = [
        "validation.enable=true",
        "validation.freq=5",
        f"validation.dataset={{name: tokens, path: {tokens}}}",
    ]
    settings = [*SETTINGS, f"optimizer={OPTIMIZERS[name]}", *held_out]
    uncut, stopped = run("uncut", *settings), run("stopped", *settings)
    rows = train(uncut)
    first, rest = train(stopped, until=7), train(stopped)
    assert np.array_equal(np.stack(first + rest), np.stack(rows))
    assert content(stopped, STEPS) == content(uncut, STEPS)


def test_schedule_free_evaluates_and_saves_the_average(run: Run, tokens: Path) -> None:
    held_out = ["validation.enable=true", f"validation.dataset={{name: tokens, path: {tokens}}}"]
    averaged = run(
        "averaged",
        "optimizer=schedule_free_adamw",
        "training.steps=6",
        "validation.freq=6",
        "checkpoint.interval=6",
        *held_out,
    )
    train(averaged)
    start = f"checkpoint.initial_load_path={averaged.parent / 'checkpoint' / 'step-6'}"
    # a rate too small to move any weight
    settings = [
        "optimizer={name: sgd, lr: 1.0e-30}",
        "lr_scheduler=constant",
        start,
        "training.steps=1",
        "validation.freq=1",
    ]
    still = run("still", *settings, *held_out)
    train(still)
    losses = [read_metrics(resolved.parent / "metrics.jsonl")[-1] for resolved in (averaged, still)]
    assert losses[0]["validation/loss"] == losses[1]["validation/loss"]
