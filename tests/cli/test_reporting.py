"""What a run says to programs: its console as JSON, and a command at its end. Through the installed
script, on real runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
SMALL = (
    "model.n_layers=1",
    "model.dim=64",
    "model.n_heads=4",
    "training.seq_len=32",
    "metrics.log_freq=1",
    "lr_scheduler.warmup_steps=1",
    "dump_folder=run",
)
NOTIFY = 'echo "$TITANRUN_STATE $TITANRUN_STEP $TITANRUN_EXIT_CODE" >> told'
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_problems_are_objects_too(titanrun: Run) -> None:
    done = titanrun(
        "train", DEBUG, "training.steps=none", "optimizer.lr=-1", "--log-format", "json"
    )
    problems = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, [problem["path"] for problem in problems]) == (
        2,
        ["training.steps", "optimizer.lr"],
    ), done.stderr


@pytest.mark.slow
def test_each_line_on_the_console_is_an_object_and_the_end_is_told(
    titanrun: Run, tmp_path: Path
) -> None:
    done = titanrun(
        "train", DEBUG, *SMALL, "training.steps=3", "--log-format", "json", "--notify", NOTIFY
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    steps = [line for line in lines if "loss" in line]
    logged = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [(line["step"], line["loss"]) for line in steps] == [
        (line["step"], line["loss"]) for line in logged
    ]
    assert all(line["steps"] == 3 and line["level"] == "info" for line in steps)
    messages = [line["message"] for line in lines if "message" in line]
    assert messages[0] == "run directory: run" and messages[-1] == "finished: 3 steps"
    assert (tmp_path / "run" / "told").read_text() == "finished 3 0\n"


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_stop_is_told_and_so_is_the_death_of_the_first_rank(
    tmp_path: Path, processes: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        DEBUG,
        *SMALL,
        "training.steps=4000",
        "--nproc",
        processes,
        "--notify",
        NOTIFY,
    ]
    for number in (signal.SIGTERM, signal.SIGKILL):
        started = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        before = steps_in(tmp_path)
        while steps_in(tmp_path) < before + 2:
            assert started.poll() is None, started.communicate()
            time.sleep(0.05)
        os.kill(json.loads((tmp_path / "run" / "status.json").read_text())["pid"], number)
        started.communicate(timeout=120)
    told = [line.split() for line in (tmp_path / "run" / "told").read_text().splitlines()]
    assert [(state, code) for state, _, code in told] == [("preempted", "75"), ("failed", "137")]
    assert int(told[0][1]) >= 2


def steps_in(folder: Path) -> int:
    file = folder / "run" / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0
