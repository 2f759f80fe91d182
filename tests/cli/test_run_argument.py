"""Runs are named without their folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.cli.main import run_and_flush
from titanrun.cli.run_argument import find_checkpoint, find_run, format_age
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference import shipped_recipes
from titanrun.runs.known_runs import remember_run

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny}
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of two names; one of the two `mine` is not finished."""
    monkeypatch.chdir(tmp_path)
    for folder, name, state, step in (
        ("mine-1", "mine", "finished", 20),
        ("mine-2", "mine", "preempted", 7),
        ("other-1", "other", "finished", 20),
    ):
        run = tmp_path / "runs" / folder
        run.mkdir(parents=True)
        start = {"time": f"2026-01-0{step % 9 + 1}T00:00:00+00:00"}
        (run / "run.json").write_text(json.dumps({"name": name, "starts": [start]}))
        (run / "resolved.yaml").write_text(RECIPE)
        (run / "status.json").write_text(json.dumps({"state": state, "step": step}))
    return tmp_path


def test_a_run_is_found_by_its_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_run("other") == "runs/other-1" == find_run("other-1")
    assert "run: runs/other-1" in capsys.readouterr().err


def test_paths_stay_as_they_are(runs: Path) -> None:
    (runs / "mine").mkdir()
    for named in ("mine", "runs/mine-1", "s3://bucket/mine", "some/where"):
        assert find_run(named) == named


@pytest.mark.parametrize("has_runs", [True, False])
def test_a_word_that_is_neither_says_how_runs_elsewhere_are_named(
    has_runs: bool, runs: Path
) -> None:
    if not has_runs:
        (runs / "runs").rename(runs / "elsewhere")
    with pytest.raises(ProblemsFound) as caught:
        find_run("nobody")
    (problem,) = caught.value.problems
    assert problem.message == (
        "no run in runs/ has the name 'nobody', and there is no such file or folder"
    )
    assert "is named by its folder, such as out/first" in (problem.hint or "")
    if not has_runs:
        assert find_run("elsewhere/mine-1") == "elsewhere/mine-1"


def test_nothing_is_chosen_among_several_runs(runs: Path) -> None:
    with pytest.raises(ProblemsFound) as caught:
        find_run("mine")
    (problem,) = caught.value.problems
    assert problem.exit_code == 2 and "2 runs have the name 'mine'" in problem.message
    assert "runs/mine-2  preempted  step 7" in problem.message


@pytest.mark.parametrize(("named", "meant"), [("othr", "other"), ("oth", "other"), ("mi", "mine")])
def test_a_word_that_is_nearly_a_name_is_a_problem(named: str, meant: str, runs: Path) -> None:
    with pytest.raises(ProblemsFound, match=f"no run in runs/ has the name '{named}'") as caught:
        find_run(named)
    assert caught.value.problems[0].hint == f"did you mean '{meant}'?"


def test_what_goes_on_is_the_one_that_is_not_finished(runs: Path) -> None:
    assert find_run("mine", wants="unfinished") == "runs/mine-2"
    assert find_run("other", wants="unfinished") == "runs/other-1"


def test_an_age_has_one_unit() -> None:
    assert [format_age(seconds) for seconds in (90, 7200, 260000)] == ["2 min", "2 h", "3 days"]


def test_a_run_elsewhere_is_found_in_the_index(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(runs / "state"))
    recipe = shipped_recipes.get_shipped_recipe("llama3_debug").path
    short = ("training.steps=1", "lr_scheduler.warmup_steps=0", "validation.enable=false")
    for folder, name in (("far/away", "distant"), ("far/other", "other")):
        command = ["train", str(recipe), f"dump_folder={folder}", f"name={name}", *short]
        subprocess.run([sys.executable, "-m", "titanrun", *command, "-q"], check=True)
    (runs / "elsewhere").mkdir()
    monkeypatch.chdir(runs / "elsewhere")
    away = str(runs / "far" / "away")
    assert find_run("distant") == away == find_run("away")
    assert f"run: {away}" in capsys.readouterr().err
    monkeypatch.chdir(runs)
    assert find_run("other") == "runs/other-1"
    (runs / "far").rename(runs / "moved")
    with pytest.raises(ProblemsFound, match="has the name 'distant'"):
        find_run("distant")
    remembered = [file.read_text() for file in (runs / "state").rglob("*.json")]
    assert len(remembered) == 1 and "other" in remembered[0]


def test_several_runs_elsewhere_are_listed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(runs / "state"))
    for folder in ("mine-1", "mine-2"):
        remember_run(runs / "runs" / folder, "mine", os.environ)
    (runs / "elsewhere").mkdir()
    monkeypatch.chdir(runs / "elsewhere")
    with pytest.raises(ProblemsFound, match="2 runs have the name 'mine'"):
        find_run("mine")
    assert find_run("mine", wants="unfinished") == str(runs / "runs" / "mine-2")


def end_with(run: Path, *lines: str) -> None:
    (run / "logs").mkdir()
    log = "".join(f"2026-01-01 00:00:00,000 {line}\n" for line in lines)
    (run / "logs" / "rank-0.log").write_text(log)


def test_runs_without_a_checkpoint_are_not_meant_where_one_is_needed(runs: Path) -> None:
    saved = runs / "runs" / "mine-1" / "checkpoint" / "step-20"
    saved.mkdir(parents=True)
    (saved / "manifest.json").touch()
    (runs / "runs" / "mine-2" / "checkpoint" / "step-7").mkdir(parents=True)
    assert find_checkpoint("mine") == Path("runs/mine-1/checkpoint/step-20")
    with pytest.raises(ProblemsFound, match="2 runs have the name 'mine'"):
        find_run("mine")
    (runs / "runs" / "mine-2" / "checkpoint" / "step-7" / "manifest.json").touch()
    with pytest.raises(ProblemsFound, match="2 runs have the name 'mine'"):
        find_checkpoint("mine")


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        (
            "mine-2",
            "run 'runs/mine-2' has no checkpoint: preempted at step 7: error[data]: no 'messages'",
            "correct what ended it, and train again",
        ),
        (
            "other-1",
            "run 'runs/other-1' has no checkpoint: finished at step 20",
            "train with checkpoint.enable: true",
        ),
    ],
)
def test_a_run_without_a_checkpoint_says_what_ended_it(
    run: str, message: str, hint: str, runs: Path
) -> None:
    end_with(
        runs / "runs" / "mine-2",
        "ERROR error[data]: an earlier one",
        "ERROR error[data]: no 'messages'",
        "WARNING saved nothing",
    )
    with pytest.raises(ProblemsFound) as caught:
        find_checkpoint(f"runs/{run}")
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint) == (message, hint)


@pytest.mark.parametrize(
    "words",
    [
        ["chat", "mine-2"],
        ["generate", "mine-2", "--prompt", "a"],
        ["eval", "mine-2"],
        ["serve", "mine-2"],
        ["push", "mine-2", "me/mine"],
        ["checkpoint", "export", "mine-2", "out", "--format", "hf"],
        ["fork", "mine-2"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_needs_a_checkpoint_says_so(
    words: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_and_flush(words) == 4
    assert "run 'runs/mine-2' has no checkpoint: preempted at step 7" in capsys.readouterr().err


def test_a_run_with_an_unreadable_recipe_is_not_left_out_silently(runs: Path) -> None:
    saved = runs / "runs" / "mine-1" / "checkpoint" / "step-20"
    saved.mkdir(parents=True)
    (saved / "manifest.json").touch()
    (runs / "runs" / "mine-2" / "resolved.yaml").write_text("version: 1\n")
    with pytest.raises(ProblemsFound, match="2 runs have the name 'mine'"):
        find_checkpoint("mine")


def test_a_folder_of_that_name_is_meant_before_names_of_recipes(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "runs" / "mine-1", runs / "runs" / "mine")
    assert find_run("mine") == "runs/mine"
    assert capsys.readouterr().err.endswith("run: runs/mine\n")
