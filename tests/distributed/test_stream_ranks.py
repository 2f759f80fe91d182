"""Streams on real ranks: killed without warning, they go on elsewhere without a lost row."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.components.data.lane_streams import write_numbered
from titanrun.components.metrics.spec.metrics_file import read_metrics

RECIPE = """
version: 1
name: streamed
device: cpu
model: {{name: llama3, flavor: debugmodel, dim: 32, n_layers: 1}}
tokenizer: tiny
training:
  dataset: {{name: text, path: {texts}, streaming: true, window: 16, packing: {packing},
             repeat: {repeat}}}
  local_batch_size: 1
  global_batch_size: 8
  seq_len: 32
  lanes: 4
  steps: {steps}
  mixed_precision_param: float32
  dataloader: {{num_workers: {workers}}}
metrics: {{log_freq: 1}}
checkpoint: {{enable: true, interval: 1, keep_latest_k: 0}}
"""
PATIENCE_SECONDS = 300


def start(recipe: Path, folder: Path, ranks: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "titanrun", "train", str(recipe), f"dump_folder={folder}"]
    return subprocess.Popen(
        [*command, "--nproc", str(ranks)], stderr=subprocess.PIPE, start_new_session=True
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, error.decode()[-2000:]


def losses(folder: Path) -> dict[int, float]:
    return {int(line["step"]): line["loss"] for line in read_metrics(folder / "metrics.jsonl")}


def data_state(folder: Path, step: int) -> dict[str, Any]:
    files = (folder / "checkpoint" / f"step-{step}").glob("*.json")
    found: dict[str, Any] = next(
        state["data"] for state in map(json.loads, map(Path.read_text, files)) if "data" in state
    )
    return found


def kill_after(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    """Kill all processes of a run without warning once a step is logged."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (folder / "metrics.jsonl").exists() or max(losses(folder), default=0) < step:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("packing", "workers"), [("windows", 0), ("windows", 2)])
def test_killed_runs_go_on_with_other_ranks_and_train_on_the_same_rows(
    packing: str, workers: int, tmp_path: Path
) -> None:
    write_numbered(tmp_path / "texts", [60] * 6)
    recipe, steps = tmp_path / "r.yaml", 12
    recipe.write_text(
        RECIPE.format(
            texts=tmp_path / "texts", packing=packing, repeat="true", steps=steps, workers=workers
        )
    )
    finish(start(recipe, tmp_path / "uncut", 1))
    draw = random.Random(workers)
    for turn, ranks in enumerate((2, 4, 1)):
        process = start(recipe, tmp_path / "killed", ranks)
        kill_after(process, tmp_path / "killed", 3 * turn + draw.randint(1, 3))
    finish(start(recipe, tmp_path / "killed", 2))
    expected, found = losses(tmp_path / "uncut"), losses(tmp_path / "killed")
    # gradients are summed in another order on other ranks
    assert found == pytest.approx(expected, rel=1e-4)
    for step in range(1, steps + 1):
        assert data_state(tmp_path / "killed", step) == data_state(tmp_path / "uncut", step)


@pytest.mark.slow
def test_a_stream_without_repeat_ends_on_all_ranks_at_once(tmp_path: Path) -> None:
    # one rank's lanes have ten times the documents of the other's
    write_numbered(tmp_path / "texts", [5, 5, 30, 30])
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        RECIPE.format(
            texts=tmp_path / "texts, shuffle: false",
            packing="windows",
            repeat="false",
            steps=1000,
            workers=0,
        )
    )
    folders = [tmp_path / f"{ranks}-ranks" for ranks in (1, 2)]
    for folder, ranks in zip(folders, (1, 2), strict=True):
        finish(start(recipe, folder, ranks))
    alone, together = map(losses, folders)
    assert 5 < len(alone) < 1000 and together == pytest.approx(alone, rel=1e-4)
