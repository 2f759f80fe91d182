"""Runs that go on for more steps than they were begun with."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
SMALL = (
    *("model.n_layers=1", "model.dim=32", "model.n_heads=2", "model.n_kv_heads=1"),
    *("training.seq_len=32", "training.local_batch_size=2", "metrics.log_freq=1"),
    *("lr_scheduler.warmup_steps=auto", "checkpoint.enable=true", "checkpoint.interval=2"),
)
Run = Callable[..., subprocess.CompletedProcess[str]]


def read_rates(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["lr"] for line in lines]


@pytest.mark.slow
def test_more_steps_are_trained_at_the_rates_of_a_run_of_that_length(
    titanrun: Run, tmp_path: Path
) -> None:
    """Row A20: after `resume training.steps=80` twenty steps were trained at a rate of 0."""

    def run(*words: str) -> None:
        done = titanrun(*words)
        assert done.returncode == 0, done.stderr

    run("train", RECIPE, *SMALL, "training.steps=8", "dump_folder=whole")
    run("train", RECIPE, *SMALL, "training.steps=4", "dump_folder=first")
    run("resume", "first", "training.steps=8")
    whole = read_rates(tmp_path / "whole")
    assert min(whole) > 0 and read_rates(tmp_path / "first")[4:] == whole[4:]
    run("fork", "first/checkpoint/step-6", "training.steps=10", "dump_folder=fork")
    assert min(read_rates(tmp_path / "fork")) > 0
    legend = titanrun("plot", "first", "fork").stdout.splitlines()[-1]
    assert "from step 6 of" in legend and legend.endswith(" at step 16")
