"""A start that fails before its first step leaves the run as it was, on one process and on two."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.schemas.output_schemas import build_run_schema

ROOT = Path(__file__).parents[2]
RECIPE = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 1, dim: 64, n_heads: 4}}
converters: [{{name: lora, rank: 4}}]
training:
  dataset: {{name: text, path: data.txt}}
  global_batch_size: 4
  local_batch_size: 2
  seq_len: 64
  steps: 4
lr_scheduler: {{warmup_steps: 0}}
validation: {{enable: false}}
checkpoint: {{enable: true}}
dump_folder: run
"""
OTHER_SIZES = (
    "training.steps=6",
    "model.n_layers=2",
    "checkpoint.allow_change=[model]",
)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "titanrun", *words]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def finish(folder: Path, *words: str, code: int) -> str:
    started = start(folder, *words)
    _, error = started.communicate(timeout=120)
    assert started.returncode == code, error
    return error


def read(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / name).read_text())


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "data.txt").write_text("the moon is made of cheese\n" * 400)
    finish(tmp_path, "train", "recipe.yaml", code=0)
    return tmp_path / "run"


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_resume_whose_checkpoint_or_data_do_not_fit_changes_nothing(
    finished: Path, ranks: str
) -> None:
    folder, before = finished.parent, (finished / "resolved.yaml").read_bytes()
    resume = ("resume", str(finished), "--nproc", ranks)
    assert "does not fit this run" in finish(folder, *resume, *OTHER_SIZES, code=4)
    text = (folder / "data.txt").read_text()
    (folder / "data.txt").write_text(text[: len(text) // 2])
    told = finish(folder, *resume, "training.steps=6", code=3)
    assert "the checkpoint was trained on other data" in told
    assert (finished / "resolved.yaml").read_bytes() == before
    status, record = read(finished, "status.json"), read(finished, "run.json")
    assert (status["state"], status["step"], status["exit_code"]) == ("finished", 4, 0)
    assert (len(record["starts"]), len(record["refused_starts"])) == (1, 2)
    assert set(OTHER_SIZES) <= set(record["refused_starts"][0]["argv"])
    jsonschema.validate(record, build_run_schema())

    (folder / "data.txt").write_text(text)
    assert "nothing to do: step 4 of 4" in finish(folder, "resume", str(finished), code=0)
    finish(folder, *resume, "training.steps=6", code=0)
    assert len(read_metrics(finished / "metrics.jsonl")) == 6
    assert not (finished / ".previous_start.json").exists()
    assert len(read(finished, "run.json")["starts"]) == 2


def test_a_start_that_was_killed_before_its_first_step_is_undone_by_the_next(
    finished: Path,
) -> None:
    folder, before = finished.parent, (finished / "resolved.yaml").read_bytes()
    allowed = ("optimizer.lr=0.5", "checkpoint.allow_change=[optimizer.lr]")
    killed = start(folder, "resume", str(finished), "training.steps=4000", *allowed)
    while len(read(finished, "run.json")["starts"]) == 1:
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGSTOP)
    # the step may have come first
    was_starting = read(finished, "status.json")["state"] == "starting"
    killed.kill()
    killed.communicate()
    assert was_starting
    finish(folder, "resume", str(finished), code=0)
    assert (finished / "resolved.yaml").read_bytes() == before
    assert read(finished, "status.json")["state"] == "finished"
    assert len(read(finished, "run.json")["refused_starts"]) == 1
