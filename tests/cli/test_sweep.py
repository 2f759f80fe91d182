"""`titanrun sweep` through the installed script, on real runs of a tiny model."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
Run = Callable[..., subprocess.CompletedProcess[str]]
SWEEP = f"""
version: 1
recipe: {RECIPE}
folder: runs/tiny
slots: 2
overrides:
  - model.n_layers=2
  - model.dim=32
  - model.n_heads=4
  - model.n_kv_heads=2
  - training.seq_len=32
  - training.local_batch_size=2
  - lr_scheduler.warmup_steps=2
  - metrics.log_freq=1
  - validation.freq=100
  - checkpoint.interval=5
"""


def write(folder: Path, text: str, *, steps: int = 20) -> None:
    (folder / "sweep.yaml").write_text(
        f"{SWEEP}  - training.steps={steps}\n{text}", encoding="utf-8"
    )


def table(titanrun: Run) -> list[dict[str, str]]:
    done = titanrun("sweep", "sweep.yaml", "--table", "--format", "csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


def start(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "titanrun", "sweep", "sweep.yaml"]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(is_so: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 300
    while not is_so():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.02)


def steps_of(run: Path) -> int:
    return (
        (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0
    )


def test_a_list_of_runs_is_what_train_takes(titanrun: Run, tmp_path: Path) -> None:
    write(tmp_path, "grid: {optimizer.lr: [1.0e-3, 2.0e-3]}\n")
    done = titanrun("sweep", "sweep.yaml", "training.steps=4", "--list")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("runs/tiny/lr=0.001  model.n_layers=2 ") and first.endswith(
        " checkpoint.interval=5 training.steps=4 optimizer.lr=0.001"
    )
    assert second.startswith("runs/tiny/lr=0.002  ") and not (tmp_path / "runs").exists()
    assert titanrun("validate", str(RECIPE), *first.split()[1:]).returncode == 0
    assert [row["state"] for row in table(titanrun)] == ["waiting", "waiting"]


def test_a_mistake_stops_the_sweep_before_the_first_run(titanrun: Run, tmp_path: Path) -> None:
    write(tmp_path, "grid: {optimizer.lr: [1.0e-3, -2.0e-3]}\n")
    done = titanrun("sweep", "sweep.yaml")
    assert (
        done.returncode == 2
        and "sweep.yaml:18:31" in done.stderr
        and "-0.002 is not above 0" in done.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_validate_names_the_command_that_starts_a_sweep(titanrun: Run, tmp_path: Path) -> None:
    write(tmp_path, "grid: {optimizer.lr: [1.0e-3, 2.0e-3]}\n")
    for level in ("syntax", "schema", "rules"):
        done = titanrun("validate", "sweep.yaml", "--level", level)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (
            0,
            "next: titanrun sweep sweep.yaml",
        )


@pytest.mark.slow
def test_a_sweep_of_which_one_run_is_killed_ends_like_one_that_was_not(
    titanrun: Run, tmp_path: Path
) -> None:
    write(tmp_path, "grid: {optimizer.lr: [1.0e-3, 2.0e-3, 5.0e-3], debug.seed: [1, 2]}\n")
    assert titanrun("sweep", "sweep.yaml").returncode == 0
    expected = table(titanrun)
    assert len(expected) == 6 and {row["state"] for row in expected} == {"finished"}
    losses = [float(row["loss"]) for row in expected]
    assert losses == sorted(losses)
    (tmp_path / "runs").rename(tmp_path / "uncut")
    victim = tmp_path / "runs" / "tiny" / "lr=0.002,seed=1"
    process = start(tmp_path)
    wait_for(lambda: steps_of(victim) >= 8, process)
    os.kill(json.loads((victim / "status.json").read_text())["pid"], signal.SIGKILL)
    said = process.communicate()[0]
    assert process.returncode == 137 and "lr=0.002,seed=1: failed with exit code 137" in said
    cut = {row["run"]: row["state"] for row in table(titanrun)}
    assert cut.pop("lr=0.002,seed=1") == "crashed" and set(cut.values()) == {"finished"}
    done = titanrun("sweep", "sweep.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": already finished") == 5 and done.stderr.count(": started") == 1
    assert table(titanrun) == expected


@pytest.mark.slow
def test_a_signal_stops_every_run_with_a_checkpoint_and_no_orphan(
    titanrun: Run, tmp_path: Path
) -> None:
    write(tmp_path, "grid: {debug.seed: [1, 2]}\n", steps=5000)
    runs = [tmp_path / "runs" / "tiny" / f"seed={seed}" for seed in (1, 2)]
    process = start(tmp_path)
    wait_for(lambda: all(steps_of(run) >= 2 for run in runs), process)
    locked = titanrun("sweep", "sweep.yaml")
    assert locked.returncode == 2 and "another sweep is running in 'runs/tiny'" in locked.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 75
    assert [row["state"] for row in table(titanrun)] == ["preempted", "preempted"]
    assert all(any((run / "checkpoint").glob("step-*/manifest.json")) for run in runs)


@pytest.mark.slow
def test_runs_that_fall_behind_are_ended_and_not_started_again(
    titanrun: Run, tmp_path: Path
) -> None:
    text = (
        "early_stopping: {name: halving, first_step: 5, factor: 2}\nlist: [{optimizer.lr: "
        "1.0e-2}, {optimizer.lr: 1.0e-7}]\n"
    )
    write(tmp_path, text, steps=400)
    (tmp_path / "sweep.yaml").write_text(
        (tmp_path / "sweep.yaml").read_text().replace("slots: 2", "slots: 1")
    )
    done = titanrun("sweep", "sweep.yaml")
    assert (
        done.returncode == 0 and "lr=1e-07: stopped early: it ranks 2 of 2 at step 5" in done.stderr
    ), done.stderr
    best, worst = table(titanrun)
    assert (best["run"], best["state"], best["step"], worst["state"]) == (
        "lr=0.01",
        "finished",
        "400",
        "ended early",
    )
    assert int(worst["step"]) < 400
    again = titanrun("sweep", "sweep.yaml")
    assert (
        again.returncode == 0
        and "lr=1e-07: was stopped early" in again.stderr
        and ": started" not in again.stderr
    )


@pytest.mark.slow
def test_a_search_trains_its_trials_and_ranks_them(titanrun: Run, tmp_path: Path) -> None:
    text = (
        "search: {count: 4, startup: 2, first: [{optimizer.lr: 1.0e-7}], values: {optimizer.lr: "
        "{log_uniform: [1.0e-7, 1.0e-2]}}}\n"
    )
    write(tmp_path, text)
    done = titanrun("sweep", "sweep.yaml")
    assert done.returncode == 0 and "importance: optimizer.lr 1.00" in done.stderr, done.stderr
    found = table(titanrun)
    assert len(found) == 4 and {row["state"] for row in found} == {"finished"}
    assert [float(row["loss"]) for row in found] == sorted(float(row["loss"]) for row in found)
    # the first point hardly learns
    assert found[-1]["trial"] == "0" and found[-1]["lr"] == "1e-07"
    again = titanrun("sweep", "sweep.yaml")
    assert again.returncode == 0 and ": started" not in again.stderr and table(titanrun) == found
