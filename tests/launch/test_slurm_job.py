"""Jobs of a real Slurm: two ranks train, are preempted, go back into the queue and go on from what
they saved."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.slurm_runs import (
    TITANRUN,
    Ask,
    build_ask,
    open_slurm,
    status,
    steps_of,
    wait_until,
)
from tests.worker.held_runs import build_hold, release, wait_for_hold
from titanrun.components.metrics.spec.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 1, dim: 64, n_heads: 4}}
training: {{global_batch_size: 4, steps: 20, seq_len: 64}}
checkpoint: {{enable: true, interval: 1000}}
validation: {{enable: false}}
launch: {{name: slurm, nproc_per_node: 2, partition: low}}
dump_folder: run
"""
SWEEP = """
version: 1
recipe: recipe.yaml
slots: 2
overrides: [launch.nproc_per_node=1, training.steps=3]
grid: {optimizer.lr: [1.0e-3, 2.0e-3]}
"""

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a Slurm of one node."""
    with open_slurm(tmp_path_factory) as environment:
        yield environment


@pytest.fixture
def ask(slurm: dict[str, str], tmp_path: Path) -> Ask:
    """Runs a command where Slurm is found, and gives what it prints."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return build_ask(tmp_path, slurm)


def test_a_preempted_job_goes_back_into_the_queue_and_on_from_its_checkpoint(
    tmp_path: Path, slurm: dict[str, str], ask: Ask
) -> None:
    run = tmp_path / "run"
    following = subprocess.Popen(
        [*TITANRUN, "launch", "recipe.yaml"],
        cwd=tmp_path,
        env={**slurm, **build_hold(2)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_hold(run, following)
    ask("sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    wait_for_hold(run, following, word="asked")
    release(run)
    wait_until(lambda: status(run)["state"] == "preempted", "the job makes room")
    assert status(run)["exit_code"] == 75
    saved = [folder.name for folder in (run / "checkpoint").iterdir()]
    _, said = following.communicate(timeout=300)
    assert following.returncode == 0, said
    assert (
        saved == [f"step-{steps_of(run)[-1]}"]
        or f"resuming after {saved[0].replace('-', ' ')}" in said
    ), said
    assert "finished: 20 steps" in said and steps_of(run) == list(range(1, 21))
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 2
    command = [
        *TITANRUN,
        "train",
        "recipe.yaml",
        "launch=local",
        "--nproc",
        "2",
        "dump_folder=alone",
    ]
    subprocess.run(command, cwd=tmp_path, env=slurm, check=True, capture_output=True)
    lines, alone = (
        read_metrics(tmp_path / folder / "metrics.jsonl") for folder in ("run", "alone")
    )
    assert [(line["loss"], line["grad_norm"]) for line in lines] == [
        (line["loss"], line["grad_norm"]) for line in alone
    ]


def test_a_cancelled_job_saves_and_stays_away(
    tmp_path: Path, slurm: dict[str, str], ask: Ask
) -> None:
    run = tmp_path / "run"
    launch = build_ask(tmp_path, {**slurm, **build_hold(2)})
    said = launch(*TITANRUN, "launch", "recipe.yaml", "--no-follow")
    job = str(json.loads((run / "launch" / "job.json").read_text())["job"])
    assert f"job {job} trains run" in said
    wait_for_hold(run)
    again = subprocess.run(
        [*TITANRUN, "launch", "recipe.yaml"],
        cwd=tmp_path,
        env=slurm,
        capture_output=True,
        text=True,
    )
    assert (
        again.returncode == 2 and f"job {job} is already training 'run': running" in again.stderr
    ), again.stderr
    ask("scancel", job)
    wait_for_hold(run, word="asked")
    release(run)
    wait_until(lambda: status(run)["state"] == "preempted", "the job saves")
    wait_until(
        lambda: "JobState=CANCELLED" in ask("scontrol", "show", "job", job), "the job is gone"
    )
    wait_until(lambda: ask("squeue", "--noheader") == "", "the queue is empty")


@pytest.mark.parametrize("host", ["login", None])
def test_a_stopped_job_saves_and_stays_away(
    tmp_path: Path, slurm: dict[str, str], ask: Ask, host: str | None
) -> None:
    """From a login node, which sees the files and Slurm alone, and from the node itself."""
    run = tmp_path / "run"
    ask(*TITANRUN, "launch", "recipe.yaml", "--no-follow", "training.steps=100000")
    wait_until(lambda: run.exists() and len(steps_of(run)) >= 2, "the job trains")
    there = f"import socket; socket.gethostname = lambda: {host!r}; " if host else ""
    titanrun = [sys.executable, "-c", f"{there}from titanrun.cli.main import main; main()"]
    saved = ask(*titanrun, "checkpoint", "now", "run").strip()
    assert saved.startswith("run/checkpoint/step-")
    assert status(run)["state"] == "running"
    assert ask(*titanrun, "stop", "run", "--wait") == "preempted\n"
    assert status(run)["exit_code"] == 75
    wait_until(lambda: ask("squeue", "--noheader") == "", "the job is gone")
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 1


def test_an_interrupted_job_stays_away(tmp_path: Path, ask: Ask) -> None:
    run = tmp_path / "run"
    ask(*TITANRUN, "launch", "recipe.yaml", "--no-follow", "training.steps=100000")
    wait_until(lambda: run.exists() and len(steps_of(run)) >= 2, "the job trains")
    login = "import socket; socket.gethostname = lambda: 'login'; "
    titanrun = [sys.executable, "-c", f"{login}from titanrun.cli.main import main; main()"]
    ask(*titanrun, "stop", "run", "--now", "--wait")
    # a step and a save of so small a model may be shorter than the time between two interrupts
    assert status(run)["exit_code"] in (75, 130)
    wait_until(lambda: ask("squeue", "--noheader") == "", "the job is gone")


def test_a_sweep_is_an_array_of_which_each_task_trains_one_run(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    assert "trains 2 runs in runs/sweep" in ask(*TITANRUN, "sweep", "sweep.yaml", "--launch")
    wait_until(lambda: ask("squeue", "--noheader") == "", "the array is done")
    rows = [
        line.split(",")[:3]
        for line in ask(
            *TITANRUN, "sweep", "sweep.yaml", "--table", "--format", "csv"
        ).splitlines()[1:]
    ]
    assert sorted(rows) == [["lr=0.001", "finished", "3"], ["lr=0.002", "finished", "3"]]
    assert "nothing to do: 2 runs" in ask(*TITANRUN, "sweep", "sweep.yaml", "--launch")


def test_before_the_time_limit_the_job_saves_and_goes_back_into_the_queue(
    tmp_path: Path, ask: Ask
) -> None:
    run = tmp_path / "run"
    # Slurm looks at its limits twice a minute, so that this one has passed at the first look
    limit = (
        "launch.time_limit=2m",
        "launch.save_seconds=119",
        "training.steps=100000",
        "launch.nproc_per_node=1",
    )
    ask(*TITANRUN, "launch", "recipe.yaml", "--no-follow", *limit)
    job = str(json.loads((run / "launch" / "job.json").read_text())["job"])
    wait_until(
        lambda: (run / "status.json").exists() and status(run)["state"] == "preempted",
        "the job is told to save",
    )
    said = (run / "launch" / f"job-{job}.log").read_text()
    assert "stopped by SIGUSR1" in said
    wait_until(
        lambda: "Restarts=1" in ask("scontrol", "show", "job", job),
        "the job goes back into the queue",
    )
    ask("scancel", job)
