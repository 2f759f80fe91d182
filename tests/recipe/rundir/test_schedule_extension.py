"""The schedule of a run that goes on with more steps."""

import shutil
from datetime import datetime
from pathlib import Path

import pytest

from titanrun.cli.resume import run as resume
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory
from titanrun.recipe.rundir.run_files import write_indented_json
from titanrun.recipe.rundir.schedule_extension import build_schedule_overrides

NOW = datetime(2026, 11, 22, 3, 0, 0)
RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64, steps: 40}
lr_scheduler: {SCHEDULE}
checkpoint: {enable: true}
dump_folder: out
"""
AUTO = "min_lr_factor: 0.1"
WRITTEN = "total_steps: 40, warmup_steps: 2"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def resolved(file: str, *overrides: str) -> Resolved:
    return resolve_recipe(file, overrides, environment={})


def begin(schedule: str) -> None:
    """Write the run directory `out` of a run that was stopped at step 20."""
    Path("recipe.yaml").write_text(RECIPE.replace("SCHEDULE", schedule))
    write(resolved("recipe.yaml"))
    checkpoint = Path("out/checkpoint/step-20")
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    shutil.copy("out/resolved.yaml", checkpoint)
    write_indented_json(Path("out/status.json"), {"state": "preempted", "step": 20})


def write(run: Resolved) -> None:
    directory = select_run_directory(run, NOW)
    write_run_directory(directory, run, ["titanrun", "train"], NOW, environment={})


def follow(file: str, *overrides: str) -> Resolved:
    return resolved(file, *build_schedule_overrides(file, overrides), *overrides)


@pytest.mark.parametrize("file", ["out/resolved.yaml", "out/checkpoint/step-20/resolved.yaml"])
@pytest.mark.parametrize("length", ["training.steps=80", "training.steps=30"])
def test_a_schedule_that_was_derived_follows_the_new_length(file: str, length: str) -> None:
    """Row A20: twenty steps were trained at a learning rate of 0."""
    begin(AUTO)
    # the recipe itself is the oracle: it still has `auto`
    assert follow(file, length).run.lr_scheduler == resolved("recipe.yaml", length).run.lr_scheduler
    # after a resume from its own resolved recipe, and after one with more steps
    write(resolved("out/resolved.yaml", "dump_folder=out"))
    assert follow(file, length).run.lr_scheduler == resolved("recipe.yaml", length).run.lr_scheduler
    write(follow("out/resolved.yaml", "training.steps=60", "dump_folder=out"))
    assert follow(file, length).run.lr_scheduler == resolved("recipe.yaml", length).run.lr_scheduler


def test_a_value_that_is_written_meanwhile_stays() -> None:
    begin("min_lr_factor: 0.0")
    horizon = "lr_scheduler.total_steps=50"
    changes = ["training.steps=80", horizon]
    assert build_schedule_overrides("out/resolved.yaml", changes) == [
        "lr_scheduler.warmup_steps=auto"
    ]
    write(resolved("out/resolved.yaml", horizon, "dump_folder=out"))
    with pytest.raises(
        ProblemsFound,
        match="30 of the 40 further steps would train at lr 0: the schedule ends at step 50",
    ):
        follow("out/resolved.yaml", "training.steps=80")


def test_nothing_changes_without_another_length() -> None:
    begin(AUTO)
    assert build_schedule_overrides("out/resolved.yaml", ["optimizer.lr=0.1"]) == []
    changes = ["training.steps=80", "lr_scheduler={name: constant}"]
    assert build_schedule_overrides("out/resolved.yaml", changes) == []


def test_steps_at_a_floor_that_was_asked_for_are_fine() -> None:
    begin(WRITTEN + ", min_lr_factor: 0.1")
    assert build_schedule_overrides("out/resolved.yaml", ["training.steps=80"]) == []


@pytest.mark.parametrize("place", ["out", "out/checkpoint/step-20"])
def test_further_steps_at_a_learning_rate_of_0_are_refused(place: str) -> None:
    begin(WRITTEN)
    with pytest.raises(ProblemsFound) as found:
        resume([place, "training.steps=80"])
    (problem,) = found.value.problems
    assert found.value.exit_code == 2
    assert str(problem.origin) == "<override 1>"
    assert problem.label == "conflict/schedule-ended"
    assert problem.message == (
        "all 40 further steps would train at lr 0: the schedule ended at step 40"
    )
    # the decay is linear over the 78 steps after a warmup of 2: (80 - 40) / 78 of 8e-4 are left
    assert problem.hint == (
        "titanrun resume out training.steps=80 lr_scheduler.total_steps=80 stretches the schedule "
        "(lr at step 41: 0.00041), titanrun fork out begins a new one"
    )
    for way in (40, 80):
        answer = f"lr_scheduler.total_steps={way}"
        assert follow("out/resolved.yaml", "training.steps=80", answer)
    assert build_schedule_overrides("out/resolved.yaml", ["training.steps=30"]) == []
