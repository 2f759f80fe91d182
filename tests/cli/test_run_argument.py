"""Runs are named without their folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.cli import runs as runs_command
from titanrun.cli import train
from titanrun.cli.main import run_and_flush
from titanrun.cli.run_argument import (
    find_checkpoint,
    find_run,
    find_run_or_recipe,
    format_age,
)
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


@pytest.mark.parametrize("named", ["other", "other-1", "runs/other-1"])
def test_an_archived_run_says_where_it_is(named: str, runs: Path) -> None:
    assert runs_command.run(["archive", "runs/other-1"]) == 0
    with pytest.raises(ProblemsFound, match=f"the run '{named}' is archived") as caught:
        find_run(named, wants="change")
    assert str(caught.value.problems[0].hint).startswith("name its folder, runs/.archive/other-1,")
    assert find_run("runs/.archive/other-1") == "runs/.archive/other-1"
    # diff-config said that there is no such file
    with pytest.raises(ProblemsFound, match=f"the run '{named}' is archived"):
        find_run_or_recipe(named)


def test_a_run_elsewhere_is_not_taken_for_an_archived_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(runs / "state"))
    far = runs / "far" / "runs" / "other-1"
    shutil.copytree(runs / "runs" / "other-1", far)
    remember_run(far, "other", os.environ)
    assert runs_command.run(["archive", "runs/other-1"]) == 0
    with pytest.raises(ProblemsFound, match="the run 'other' is archived"):
        find_run("other")


@pytest.mark.parametrize("command", ["resume", "chat"])
def test_the_folder_of_all_runs_lists_them(
    command: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_and_flush([command, "runs"]) == 2
    shown = capsys.readouterr().err
    assert "'runs' is a folder of 3 runs, not one of them:\n" in shown
    assert "runs/mine-2  preempted  step 7" in shown and "runs/other-1  finished" in shown
    # the newest one
    assert "help: name one of them, such as runs/mine-2\n" in shown


def test_a_folder_of_many_runs_lists_the_newest(runs: Path) -> None:
    for number in range(20):
        shutil.copytree("runs/mine-2", f"runs/more-{number}")
    with pytest.raises(ProblemsFound) as caught:
        find_run("runs", wants="unfinished")
    assert caught.value.problems[0].listed[-1] == "... and 13 more"


def test_overrides_of_a_resumed_run_are_numbered_as_they_were_typed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["resume", "runs/mine-2", "training.steps=x", "optimizer.lr=y"]
    assert run_and_flush(words) == 2
    shown = capsys.readouterr().err
    assert "--> <override 1>  (training.steps)" in shown
    assert "--> <override 2>  (optimizer.lr)" in shown


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
    assert problem.listed[0].startswith("runs/mine-2  preempted  step 7")


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
    # a run that is changed is one of runs/
    for wants in ("unfinished", "change"):
        with pytest.raises(ProblemsFound, match="no run in runs/ has the name 'mine'") as caught:
            find_run("mine", wants=wants)
        hint = caught.value.problems[0].hint
        assert hint is not None and hint.endswith(f": {runs / 'runs' / 'mine-1'}")


@pytest.mark.parametrize(
    "words",
    [
        "bundle RUN",
        "chat RUN",
        "chat runs/mine-1 RUN",
        "checkpoint diff RUN runs/mine-1",
        "checkpoint export RUN out --format hf",
        "checkpoint import RUN out --from titanrun",
        "checkpoint ls RUN",
        "checkpoint now RUN",
        "checkpoint prune RUN --keep 1",
        "checkpoint rm RUN 20",
        "checkpoint show RUN",
        "checkpoint verify RUN",
        "eval RUN",
        "fork RUN",
        "generate RUN --prompt a",
        "plot RUN",
        "push RUN me/mine",
        "report RUN",
        "reproduce RUN",
        "resume RUN",
        "runs archive RUN",
        "runs compare RUN runs/mine-1",
        "runs diff RUN runs/mine-1",
        "runs rm RUN",
        "runs show RUN",
        "runs tag RUN good",
        "serve RUN",
        "stop RUN",
    ],
)
def test_every_command_with_a_run_takes_its_name(
    words: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("mine-1", "mine-2"):
        saved = runs / "runs" / folder / "checkpoint" / "step-20"
        saved.mkdir(parents=True)
        (saved / "manifest.json").write_text("{}")
        (saved / "resolved.yaml").write_text(RECIPE)
    run_and_flush([word.replace("RUN", "nobody") for word in words.split()])
    assert "no run in runs/ has the name 'nobody'" in capsys.readouterr().err
    shutil.copytree(runs / "runs" / "mine-2", runs / "runs" / "mine-3")
    assert run_and_flush([word.replace("RUN", "mine") for word in words.split()]) != 0
    assert " runs have the name 'mine'" in capsys.readouterr().err


def test_runs_are_tagged_archived_and_removed_by_name(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_and_flush(["runs", "tag", "other", "good"]) == 0
    assert "run: runs/other-1" in capsys.readouterr().err
    assert run_and_flush(["runs", "archive", "other", "runs/other-1"]) == 0
    archived = runs / "runs" / ".archive" / "other-1"
    assert (archived / "tags.json").is_file()
    assert run_and_flush(["runs", "archive", "nobody", "--restore"]) == 2
    assert "no archived run in runs/ has the name 'nobody'" in capsys.readouterr().err
    # an archived run is told, and no run elsewhere is taken for it
    with pytest.raises(ProblemsFound) as found:
        find_run("other")
    (problem,) = found.value.problems
    assert problem.message == "the run 'other' is archived"
    assert "runs archive --restore runs/.archive/other-1" in str(problem.hint)
    assert run_and_flush(["runs", "archive", "other", "--restore"]) == 0
    assert run_and_flush(["runs", "rm", "other", "--yes"]) == 0
    left = [folder.name for folder in (runs / "runs").glob("*-?")]
    assert sorted(left) == ["mine-1", "mine-2"]
    assert run_and_flush(["runs", "rm", "runs", "--yes"]) == 2
    assert "'runs' is a folder of 2 runs" in capsys.readouterr().err


def test_a_recipe_is_meant_before_a_run_where_both_can_be(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_and_flush(["diff-config", "other", "mine-1"]) == 0
    assert "run: runs/other-1" in capsys.readouterr().err
    shutil.copytree(runs / "runs" / "mine-1", runs / "runs" / "llama3_debug")
    assert find_run_or_recipe("llama3_debug") == "llama3_debug" == find_run("llama3_debug")[5:]
    assert find_run_or_recipe("none") == "none"


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


def test_a_model_is_no_run_to_resume(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "model").mkdir()
    (runs / "model" / "config.json").write_text("{}")
    assert run_and_flush(["resume", "model"]) == 4
    shown = capsys.readouterr().err
    assert "'model' is a model, not a run or a checkpoint" in shown
    assert "titanrun init --kind sft --model model --data FILE -o mine.yaml" in shown


def test_every_part_of_the_path_of_a_run_may_be_misspelled(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_and_flush(["resume", "rusn/other-1"]) == 4
    assert "= help: did you mean 'runs/other-1'?" in capsys.readouterr().err


def test_resume_takes_the_number_of_processes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[list[str]] = []
    monkeypatch.setattr(train, "run", lambda words: passed.append(words) or 0)
    assert run_and_flush(["resume", "runs/mine-2", "--nproc", "2", "training.steps=9"]) == 0
    [words] = passed
    assert words[:2] == ["runs/mine-2/resolved.yaml", "training.steps=9"]
    assert words[words.index("--nproc") + 1] == "2"
