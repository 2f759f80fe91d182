"""`titanrun launch` through the installed script, where there is no Slurm."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from titanrun.launch.launch_env import is_in_distributed_job

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
SLURM = ("launch.name=slurm", "launch.nproc_per_node=2", "dump_folder=run")
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_dry_run_prints_the_script_and_writes_nothing(titanrun: Run, tmp_path: Path) -> None:
    done = titanrun("launch", DEBUG, *SLURM, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n") and "resume run\n" in done.stdout
    assert f"#SBATCH --output={tmp_path}/run/launch/job-%j.log" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert (
        titanrun("launch", DEBUG, "--dry-run", "optimizer.lr=1").stdout
        == f"titanrun train {DEBUG} optimizer.lr=1\n"
    )


def test_a_dry_run_warns_of_what_is_missing_here(titanrun: Run, tmp_path: Path) -> None:
    """Row C19 of the defect list."""
    absent = ("training.dataset={name: text, path: /cluster/*.jsonl}", "validation.enable=false")
    done = titanrun("launch", DEBUG, *SLURM, *absent, "--dry-run")
    assert done.stdout.startswith("#!/bin/bash\n"), done.stderr
    assert "warning[data/" in done.stderr and "error" not in done.stderr
    assert done.returncode == 0
    here = titanrun("launch", DEBUG, *absent, "--dry-run")
    assert here.stdout.startswith("titanrun train ")
    assert "warning[data/" in here.stderr
    assert titanrun("launch", DEBUG, *SLURM, *absent).returncode == 3
    broken = titanrun("launch", DEBUG, *SLURM, *absent, "training.steps=-1", "--dry-run")
    assert (broken.stdout, broken.returncode) == ("", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_program_is_named(titanrun: Run, tmp_path: Path) -> None:
    done = titanrun("launch", DEBUG, *SLURM, env={**os.environ, "PATH": str(tmp_path)})
    assert (
        done.returncode,
        "needs sbatch, which is not installed on this machine" in done.stderr,
    ) == (
        2,
        True,
    ), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_train_does_not_train_what_is_for_a_queue(titanrun: Run) -> None:
    done = titanrun("train", DEBUG, *SLURM)
    assert (done.returncode, "use titanrun launch to submit it" in done.stderr) == (2, True), (
        done.stderr
    )
    assert [
        is_in_distributed_job(variables)
        for variables in ({}, {"SLURM_JOB_ID": "1"}, {"SLURM_STEP_NUM_TASKS": "1"})
    ] == [False, False, True]


def test_a_sweep_shows_its_array_and_says_what_an_array_cannot_do(
    titanrun: Run, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(
        f"version: 1\nrecipe: {DEBUG}\nslots: 2\ngrid: {{optimizer.lr: [1.0e-3, 2.0e-3, 4.0e-3]}}\n"
    )
    done = titanrun("sweep", "sweep.yaml", "--dry-run", *SLURM[:2])
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-2%2" in done.stdout and "    runs/sweep/lr=0.004\n" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]
    absent = ("training.dataset={name: text, path: /no/*}", "validation.enable=false")
    elsewhere = titanrun("sweep", "sweep.yaml", "--dry-run", *SLURM[:2], *absent)
    assert "#SBATCH --array=0-2%2" in elsewhere.stdout, elsewhere.stderr
    assert "warning[data/" in elsewhere.stderr
    refused = titanrun("sweep", "sweep.yaml", "--dry-run")
    assert (
        refused.returncode,
        "the recipe of this sweep launches on this machine" in refused.stderr,
    ) == (2, True), refused.stderr
    with (tmp_path / "sweep.yaml").open("a") as file:
        file.write("early_stopping: {name: median}\n")
    refused = titanrun("sweep", "sweep.yaml", "--dry-run", *SLURM[:2])
    assert (refused.returncode, "no process monitors its runs" in refused.stderr) == (
        2,
        True,
    ), refused.stderr
