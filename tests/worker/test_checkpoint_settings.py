"""What the checkpoint section asks for is what happens."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.components.checkpoints.manifest import Manifest, read_manifest, step_folders
from titanrun.components.metrics.jsonl import read_metrics
from titanrun.distributed.environment import Place
from titanrun.recipe.resolve import read_resolved
from titanrun.training.signals import SignalRequests
from titanrun.worker.assemble import assembled
from titanrun.worker.job import meet_others
from titanrun.worker.main import main

Run = Callable[..., Path]


def stop_after(resolved: Path, step: int) -> None:
    """Trains until a step is done, and saves."""

    def stop(done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with (
        SignalRequests() as signals,
        assembled(read_resolved(resolved), meet_others(resolved, Place()), signals=signals, on_step=stop) as trainer,
    ):
        trainer.fit()


def manifests(resolved: Path) -> dict[int, Manifest]:
    return {step: read_manifest(folder) for step, folder in step_folders(resolved.parent / "checkpoint").items()}


def losses(resolved: Path) -> dict[int, float]:
    return {int(line["step"]): line["loss"] for line in read_metrics(resolved.parent / "metrics.jsonl")}


def test_tensors_of_another_dtype_are_converted_where_that_is_allowed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(run("run"), 4)
    half = "training.dtype=bfloat16"
    assert main([str(run("run", half))]) == 4
    assert "another type: model.layers.0.attention.wk.weight (float32[16, 32], wanted bfloat16[16, 32])" in capsys.readouterr().err
    assert main([str(run("run", half, "checkpoint.allow_cast=true"))]) == 0


def test_tensors_that_the_model_has_not_are_passed_over_where_that_is_allowed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(run("run"), 4)
    shallow = "model.n_layers=1"
    assert main([str(run("run", shallow))]) == 4
    assert "unexpected: model.layers.1.attention.wk.weight" in capsys.readouterr().err
    assert main([str(run("run", shallow, "checkpoint.allow_extra=true"))]) == 0
