"""`titanrun train` on two processes of this machine, as a person starts it: a signal stops both,
and the same command goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 2}}
training: {{global_batch_size: 4, steps: 4000, seq_len: 64}}
lr_scheduler: {{total_steps: 4000}}
checkpoint: {{enable: true, interval: 5000}}
launch: {{nproc_per_node: 2}}
dump_folder: run
"""


def train(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "titanrun", "train", "recipe.yaml", *overrides]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_steps(run: Path, count: int) -> None:
    """Returns when so many steps are logged."""
    for _ in range(6000):
        if (run / "metrics.jsonl").exists() and len(
            (run / "metrics.jsonl").read_text().splitlines()
        ) >= count:
            return
        time.sleep(0.02)
    raise AssertionError("no steps")


def test_two_processes_train_stop_together_and_go_on(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run = tmp_path / "run"
    started = train(tmp_path)
    wait_for_steps(run, 2)
    # the first rank alone, past the launcher: the other hears of it from there
    os.kill(json.loads((run / "status.json").read_text())["pid"], signal.SIGTERM)
    _, error = started.communicate(timeout=120)
    assert started.returncode == 75, error
    stopped = int(re.search(r"stopped by SIGTERM after step (\d+) of 4000, saved", error)[1])
    assert "Traceback" not in error and "warn" not in error.lower()
    assert error.count("run directory: run") == error.count("stopped by SIGTERM") == 1
    assert error.count("SIGTERM: stopping after this step, then saving\n") == 1
    decided = json.loads((run / "run.json").read_text())["starts"][-1]["decided"]
    assert (decided["ranks"], decided["data_parallel_shard_degree"]) == (2, 2)
    assert [entry.name for entry in (run / "checkpoint").iterdir()] == [f"step-{stopped}"]
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("preempted", stopped, 75)
    again = train(tmp_path, f"training.steps={stopped + 2}")
    _, error = again.communicate(timeout=120)
    assert again.returncode == 0, error
    assert f"resuming after step {stopped}" in error
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, stopped + 3))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [
        f"step {stopped + 2}  loss" in (run / "logs" / f"rank-{rank}.log").read_text()
        for rank in (0, 1)
    ] == [True, True]


@pytest.mark.slow
def test_ranks_that_srun_started_join_each_other(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    step = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "127.0.0.1",
    }
    command = [sys.executable, "-m", "titanrun", "train", "recipe.yaml", "training.steps=3"]
    ranks = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
            stderr=subprocess.PIPE,
        )
        for rank in ("1", "0")
    ]
    errors = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert errors[0] == ""
    assert "finished: 3 steps" in errors[1]
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 3


def test_a_quiet_run_shows_warnings_and_errors_only(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    short = [
        "training.steps=2",
        "lr_scheduler.total_steps=2",
        "launch.nproc_per_node=1",
        "checkpoint.enable=false",
    ]
    ended = train(
        tmp_path,
        *short,
        "checkpoint.interval!",
        "checkpoint.keep_latest_k!",
        "validation.enable=false",
        "--quiet",
    )
    output, error = ended.communicate(timeout=120)
    assert ended.returncode == 0, error
    assert output == ""
    assert "loss" not in error and "finished" not in error and "run directory" not in error
    assert "finished: 2 steps" in (tmp_path / "run" / "logs" / "rank-0.log").read_text()
