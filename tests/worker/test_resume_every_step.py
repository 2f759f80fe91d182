"""A run of 20 steps may stop after any of them: the next one is bitwise the same, and so by induction is all that follows."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.checkpoints.digested_file import FileEntry
from titanrun.components.checkpoints.manifest import read_manifest
from titanrun.distributed.environment import Place
from titanrun.recipe.resolve import read_resolved
from titanrun.training.signals import SignalRequests
from titanrun.worker.assemble import assembled
from titanrun.worker.job import meet_others

Run = Callable[..., Path]
STEPS = 20
# two passes a step, shuffled data of which the third epoch begins, every layer recomputed
SETTINGS = ["training.steps=20", "activation_checkpoint=full", "checkpoint.interval=1", "checkpoint.keep_latest_k=0"]


def train(resolved: Path, *, until: int = STEPS) -> list[NDArray[np.int64]]:
    """Trains until a step is done. Gives the rows read."""

    def stop(step: int) -> None:
        if step == until:
            os.kill(os.getpid(), signal.SIGTERM)

    seen = []
    with (
        SignalRequests() as signals,
        assembled(read_resolved(resolved), meet_others(resolved, Place()), signals=signals, on_step=stop) as trainer,
    ):
        next_rows = trainer.rows.next_rows
        trainer.rows.next_rows = lambda: seen.append(next_rows()) or seen[-1]  # type: ignore[method-assign]
        trainer.fit()
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


def test_the_rest_of_the_run_follows_too(run: Run) -> None:
    uncut, stopped = run("uncut", *SETTINGS), run("stopped", *SETTINGS)
    rows = train(uncut)
    first, rest = train(stopped, until=7), train(stopped)
    assert np.array_equal(np.stack(first + rest), np.stack(rows))
    assert content(stopped, STEPS) == content(uncut, STEPS)
