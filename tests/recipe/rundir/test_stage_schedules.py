"""The schedules of stages that go on with more steps."""

from datetime import datetime
from pathlib import Path

import pytest

from titanrun.cli.resume import build_length_overrides
from titanrun.cli.resume import run as resume
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.read_recipe import compose_recipe
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.stage_sequence import build_stage_sequence, format_multi_stage_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory

NOW = datetime(2026, 11, 22, 3, 0, 0)
RECIPE = """
version: 1
name: both
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64, steps: 20}
lr_scheduler: {SCHEDULE}
stages:
  - id: pretrain
  - id: sft
    training: {steps: 40}
"""
AUTO = "min_lr_factor: 0.0"
WRITTEN = "total_steps: 40"
MORE = "stages.sft.training.steps=80"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begin(schedule: str, *, started: tuple[str, ...] = ("pretrain", "sft")) -> None:
    """Write the folder `out` of a recipe whose stages have started."""
    Path("both.yaml").write_text(RECIPE.replace("SCHEDULE", schedule))
    ids = ("pretrain", "sft")
    runs = [resolve("both.yaml", stage) for stage in ids]
    Path("out").mkdir()
    stages = build_stage_sequence(ids, runs, compose_recipe("both.yaml"))
    Path("out/stages.yaml").write_text(format_multi_stage_recipe("both", stages))
    for stage in started:
        write("both.yaml", stage)


def resolve(file: str, stage: str, *overrides: str) -> Resolved:
    return resolve_recipe(
        f"{file}#{stage}", [f"dump_folder=out/{stage}", *overrides], environment={}
    )


def write(file: str, stage: str, *overrides: str) -> None:
    run = resolve(file, stage, *overrides)
    write_run_directory(select_run_directory(run, NOW), run, ["titanrun"], NOW, environment={})


def follow(*overrides: str) -> list[str]:
    return build_length_overrides("out/stages.yaml", overrides)


def test_a_schedule_that_was_derived_follows_the_new_length_of_its_stage() -> None:
    begin(AUTO)
    found = follow(MORE)
    assert found == [
        "stages.sft.lr_scheduler.warmup_steps=auto",
        "stages.sft.lr_scheduler.total_steps=auto",
    ]
    # it is still derived after a resume from the recipe of all stages
    write("out/stages.yaml", "sft", MORE, *found)
    assert follow("stages.sft.training.steps=90") == found
    # a length of all stages
    assert follow("training.steps=90") == [
        *(name.replace("sft", "pretrain") for name in found),
        *found,
    ]
    assert follow("stages.sft.optimizer.lr=0.1") == [MORE, *found]
    assert follow(MORE, "stages.sft.lr_scheduler.total_steps=50") == found[:1]


def test_a_stage_that_has_not_started_follows_its_new_length() -> None:
    begin(AUTO, started=("pretrain",))
    assert follow(MORE) == ["stages.sft.lr_scheduler.total_steps=auto"]


def test_further_steps_of_a_stage_at_a_learning_rate_of_0_are_refused() -> None:
    begin(WRITTEN)
    with pytest.raises(ProblemsFound) as found:
        resume(["out", MORE])
    (problem,) = found.value.problems
    assert (problem.label, str(problem.origin)) == ("conflict/schedule-ended", "<override 1>")
    assert problem.message == (
        "stage sft: all 40 further steps would train at lr 0: the schedule ended at step 40"
    )
    assert problem.hint is not None
    assert problem.hint.startswith(
        "titanrun resume out stages.sft.training.steps=80 stages.sft.lr_scheduler.total_steps=80 "
    )
    assert problem.hint.endswith("titanrun fork out/sft begins a new one")
    assert follow(MORE, "stages.sft.lr_scheduler.total_steps=80") == [
        "stages.sft.lr_scheduler.warmup_steps=auto"
    ]


def test_a_stage_that_was_resumed_by_itself_keeps_its_length() -> None:
    begin(AUTO)
    assert follow() == []
    write("both.yaml", "sft", "training.steps=80")
    found = follow()
    assert found == [
        "stages.sft.training.steps=80",
        "stages.sft.lr_scheduler.warmup_steps=auto",
        "stages.sft.lr_scheduler.total_steps=auto",
    ]
    # nothing of the run changes by it
    kept = resolve("out/stages.yaml", "sft", *found)
    assert not select_run_directory(kept, NOW).resume_changes.all_changes
    assert [one for one in follow("stages.sft.training.steps=90") if "sft.training" in one] == []
