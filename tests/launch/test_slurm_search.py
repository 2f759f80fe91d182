"""Searches as arrays of a real Slurm: each task draws a point, trains it and records its value."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.slurm_runs import TITANRUN, Ask, build_ask, open_slurm, wait_until
from tests.worker.held_runs import build_hold, release
from titanrun.components.metrics.spec.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 1, dim: 64, n_heads: 4}}
training: {{global_batch_size: 4, steps: 3, seq_len: 64}}
checkpoint: {{enable: true, interval: 1000}}
validation: {{enable: false}}
launch: {{name: slurm, nproc_per_node: 1, cpus_per_task: 1, partition: low}}
dump_folder: run
"""
SEARCH = """
version: 1
recipe: recipe.yaml
slots: 2
search:
  count: 5
  sampler: random
  values: {optimizer.lr: {log_uniform: [1.0e-4, 1.0e-2]}}
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
    (tmp_path / "search.yaml").write_text(SEARCH)
    return build_ask(tmp_path, slurm)


def wait_for_array(ask: Ask) -> None:
    wait_until(lambda: ask("squeue", "--noheader") == "", "the array is done")


def list_runs(tmp_path: Path) -> list[Path]:
    return [path.parent for path in (tmp_path / "runs" / "search").glob("*/metrics.jsonl")]


def wait_for_files(tmp_path: Path, name: str, count: int) -> list[Path]:
    """Wait until so many runs have a file, and return them."""

    def find() -> list[Path]:
        return [run for run in list_runs(tmp_path) if (run / name).exists()]

    wait_until(lambda: len(find()) == count, f"{count} runs have {name}")
    return find()


def load_rows(ask: Ask) -> list[dict[str, object]]:
    lines = ask(*TITANRUN, "sweep", "search.yaml", "--table", "--format", "json").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_each_task_of_an_array_trains_one_trial(
    tmp_path: Path, slurm: dict[str, str], ask: Ask
) -> None:
    # its runs wait, so that the array is not over when it is submitted again
    held = {**slurm, **build_hold(1)}
    said = build_ask(tmp_path, held)(*TITANRUN, "sweep", "search.yaml", "--launch")
    assert "trains 5 trials in runs/search" in said
    again = subprocess.run(
        [*TITANRUN, "sweep", "search.yaml", "--launch"],
        cwd=tmp_path,
        env=slurm,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 2 and "is already training" in again.stderr, again.stderr

    def is_done_when_released() -> bool:
        for run in list_runs(tmp_path):
            release(run)
        return ask("squeue", "--noheader") == ""

    wait_until(is_done_when_released, "the array is done")
    rows = load_rows(ask)
    assert sorted(int(str(row["trial"])) for row in rows) == [0, 1, 2, 3, 4]
    for row in rows:
        steps = read_metrics(tmp_path / "runs" / "search" / str(row["run"]) / "metrics.jsonl")
        assert (row["state"], len(steps)) == ("finished", 3)
        assert row["value"] == min(line["loss"] for line in steps)
    assert not list((tmp_path / "runs" / "search" / "machines").iterdir())
    assert "nothing to do: 5 trials" in ask(*TITANRUN, "sweep", "search.yaml", "--launch")


def test_preempted_and_killed_tasks_lose_no_trial(
    tmp_path: Path, slurm: dict[str, str], ask: Ask
) -> None:
    steps = 10
    overrides = (f"training.steps={steps}",)
    text = SEARCH.replace("count: 5", "count: 3")
    (tmp_path / "search.yaml").write_text(text)
    # each run waits after step 3
    launch = build_ask(tmp_path, {**slurm, **build_hold(3)})
    launch(*TITANRUN, "sweep", "search.yaml", "--launch", *overrides)
    first = {run.name for run in wait_for_files(tmp_path, "held-0", 2)}
    ask("sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    for run in wait_for_files(tmp_path, "asked-0", 2):
        release(run)
    wait_until(
        lambda: all(
            json.loads((run / "status.json").read_text())["state"] == "preempted"
            for run in list_runs(tmp_path)
        ),
        "both make room",
    )
    log = next((tmp_path / "runs" / "search" / "launch").glob("job-*_0.log"))
    said = "interrupted, resumes when the sweep is run again"
    wait_until(lambda: said in log.read_text(), "its task hears of it")
    (last,) = {run for run in wait_for_files(tmp_path, "held-0", 3) if run.name not in first}
    pid = json.loads((last / "status.json").read_text())["pid"]
    subprocess.run(["kill", "-KILL", str(pid)], check=True)
    release(last)
    wait_for_array(ask)
    states = {str(row["run"]): row["state"] for row in load_rows(ask)}
    assert len(states) == 3 and first == {name for name in states if states[name] == "finished"}
    assert states[last.name] == "crashed"
    said = ask(*TITANRUN, "sweep", "search.yaml", "--launch", *overrides)
    assert "trains 1 trial in runs/search" in said
    wait_for_array(ask)
    rows = load_rows(ask)
    assert [row["state"] for row in rows] == ["finished"] * 3
    for run in list_runs(tmp_path):
        assert [line["step"] for line in read_metrics(run / "metrics.jsonl")] == [
            *range(1, steps + 1)
        ]
    preempted = tmp_path / "runs" / "search" / sorted(first)[0] / "run.json"
    assert len(json.loads(preempted.read_text())["starts"]) == 2


def test_a_pruner_ends_trials_within_their_tasks(tmp_path: Path, ask: Ask) -> None:
    text = SEARCH.replace("slots: 2", "slots: 1").replace("count: 5", "count: 4")
    text = text.replace("sampler: random", "sampler: random\n  first: [{optimizer.lr: 1.0e-2}]")
    rule = "early_stopping: {name: percentile, percentile: 25.0, first_step: 5, startup: 1}\n"
    (tmp_path / "search.yaml").write_text(text + rule)
    overrides = ("training.steps=100", "lr_scheduler.warmup_steps=0", "metrics.log_freq=1")
    ask(*TITANRUN, "sweep", "search.yaml", "--launch", *overrides)
    wait_for_array(ask)
    rows = load_rows(ask)
    ended = [row for row in rows if row["state"] == "ended early"]
    assert len(rows) == 4 and ended and rows[0]["state"] == "finished"
    assert all(int(str(row["step"])) < 100 for row in ended)
    logs = [path.read_text() for path in (tmp_path / "runs/search/launch").glob("job-*.log")]
    assert sum("stopped early: percentile ends it" in text for text in logs) == len(ended)
    assert "nothing to do" in ask(*TITANRUN, "sweep", "search.yaml", "--launch", *overrides)


def test_a_canceled_array_saves_and_goes_on_when_it_is_submitted_again(
    tmp_path: Path, slurm: dict[str, str], ask: Ask
) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH.replace("count: 5", "count: 2"))
    overrides = ("training.steps=10",)
    launch = build_ask(tmp_path, {**slurm, **build_hold(3)})
    launch(*TITANRUN, "sweep", "search.yaml", "--launch", *overrides)
    wait_for_files(tmp_path, "held-0", 2)
    job = json.loads((tmp_path / "runs" / "search" / "launch" / "job.json").read_text())["job"]
    ask("scancel", str(job))
    for run in wait_for_files(tmp_path, "asked-0", 2):
        release(run)
    wait_for_array(ask)
    assert [row["state"] for row in load_rows(ask)] == ["preempted"] * 2
    said = ask(*TITANRUN, "sweep", "search.yaml", "--launch", *overrides)
    assert "trains 2 trials in runs/search" in said
    wait_for_array(ask)
    assert [row["state"] for row in load_rows(ask)] == ["finished"] * 2
    for run in list_runs(tmp_path):
        assert [line["step"] for line in read_metrics(run / "metrics.jsonl")] == [*range(1, 11)]
        assert len(json.loads((run / "run.json").read_text())["starts"]) == 2
