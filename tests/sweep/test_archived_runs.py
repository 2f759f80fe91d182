"""Runs of a sweep that are in the archive: they are not trained again, and are still ranked."""

import json
from pathlib import Path

import pytest

from tests.sweep.test_search import RATE, run, trials_of, write
from titanrun.cli.sweep import print_sweep_runs
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.runs.run_archive import archive_run_folders
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.run_sources import FixedRuns
from titanrun.sweep.slurm_array import get_unfinished_runs
from titanrun.sweep.sweep_results import load_sweep_result
from titanrun.sweep.validate_points import PlannedRun

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"


def write_run(folder: Path, state: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format": 1, "name": folder.name, "starts": []}))
    (folder / "status.json").write_text(json.dumps({"state": state, "step": 3}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": 1.5}) + "\n")
    return folder


def test_an_archived_run_is_skipped_and_keeps_its_place_in_the_table(tmp_path: Path) -> None:
    archive_run_folders([write_run(tmp_path / "a", "preempted")])
    resolved = resolve_recipe(str(RECIPE), environment={})
    runs = [PlannedRun(name, tmp_path / name, {}, (), resolved) for name in ("a", "b")]
    said: list[str] = []
    source = FixedRuns(
        folder=tmp_path, runs=runs, print_line=said.append, is_edited=lambda run: False
    )
    assert said == ["a: archived, skipped"]
    assert source.take_run() == runs[1] and not source.has_more
    assert get_unfinished_runs(runs) == runs[1:]
    config = SweepConfig(version=1, recipe=str(RECIPE))
    found = load_sweep_result("a", tmp_path / "a", {}, config, is_ended=False)
    assert (found.state, found.step, found.best_value, found.best_step) == ("archived", 3, 1.5, 3)


def test_a_list_of_runs_marks_those_that_were_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "b", "finished")
    archive_run_folders([write_run(tmp_path / "a", "preempted")])
    resolved = resolve_recipe(str(RECIPE), environment={})
    runs = [PlannedRun(name, tmp_path / name, {}, ("x=1",), resolved) for name in ("a", "b", "c")]
    print_sweep_runs(runs)
    lines = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["a  x=1  # archived", "b  x=1  # finished", "c  x=1"]


def test_a_run_that_was_trained_again_hides_the_archived_one(tmp_path: Path) -> None:
    archive_run_folders([write_run(tmp_path / "a", "preempted")])
    write_run(tmp_path / "a", "finished")
    config = SweepConfig(version=1, recipe=str(RECIPE))
    found = load_sweep_result("a", tmp_path / "a", {}, config, is_ended=False)
    assert found.state == "finished"


def test_a_search_does_not_train_archived_trials_again(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 3, sampler: random", values=RATE)
    run(file)
    folders = {trial.number: tmp_path / "runs" / trial.notes["run"] for trial in trials_of(file)}
    study_before = [trial.value for trial in trials_of(file)]
    archive_run_folders(list(folders.values()))
    assert ": started" not in run(file)
    assert [trial.value for trial in trials_of(file)] == study_before


def test_a_trial_archived_before_its_end_has_failed(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 1, sampler: random", values=RATE)
    journal = tmp_path / "runs" / "optuna.journal"
    run(file)
    (trial,) = trials_of(file)
    # as the journal was before the run ended: operation 6 sets the state of a trial
    lines = [line for line in journal.read_text().splitlines() if '"op_code":6' not in line]
    journal.write_text("\n".join(lines) + "\n")
    assert [trial.state for trial in trials_of(file)] == ["running"]
    folder = tmp_path / "runs" / trial.notes["run"]
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "preempted"}))
    archive_run_folders([folder])
    said = run(file)
    assert ": started" not in said and "archived before its end" in said
    assert [trial.state for trial in trials_of(file)] == ["failed"]
