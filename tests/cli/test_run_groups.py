"""The folder of the stages of a recipe, or of a sweep, in the place of a run."""

import json
import shlex
from pathlib import Path

import pytest

from titanrun.cli.main import run_and_flush
from titanrun.cli.run_groups import find_running_stage
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny, steps: 20}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two finished runs in the folder of stages `whole`, and two in that of a sweep."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    text = resolve_recipe("recipe.yaml", environment={}).text
    for number, folder in enumerate(("whole/first", "whole/second", "sweep/a", "sweep/b"), 1):
        run = tmp_path / "runs" / folder
        run.mkdir(parents=True)
        start = {"time": f"2026-01-0{number}T00:00:00+00:00"}
        (run / "run.json").write_text(json.dumps({"name": run.name, "starts": [start]}))
        (run / "resolved.yaml").write_text(text)
        (run / "metrics.jsonl").write_text('{"step": 20, "loss": 2.0}\n{"step": 20, "loss": 2.0}\n')
        (run / "status.json").write_text(json.dumps({"state": "finished", "step": 20}))
    (tmp_path / "runs" / "whole" / "stages.yaml").write_text(
        "version: 1\nstages:\n  - id: first\n  - id: second\n"
    )
    return tmp_path


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run_and_flush(shlex.split(command))
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("folder", ["whole", "sweep"])
@pytest.mark.parametrize(
    "command",
    ["runs compare {}", "report {}", "plot {}", "plot {} loss", "diff-config {} runs/sweep/b"],
)
def test_commands_about_a_run_name_those_in_a_folder(
    command: str, folder: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "runs/sweep/b"
    code, _, error = run(command.format(f"runs/{folder}"), capsys)
    assert code == 2 and f"'runs/{folder}' is a folder of 2 runs, not one of them:" in error
    advice = error.rpartition(": titanrun ")[2]
    inside = {"whole": ["first", "second"], "sweep": ["a", "b"]}[folder]
    if command.startswith("diff-config"):
        assert advice.split() == ["diff-config", f"runs/{folder}/{inside[1]}", other]
    else:
        assert advice.split()[-2:] == [f"runs/{folder}/{name}" for name in inside]
    assert run(advice, capsys)[0] == 0


@pytest.mark.parametrize("command", ["stop", "runs tag", "runs rm", "runs archive"])
def test_what_changes_a_run_names_those_of_a_sweep(
    command: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(f"{command} runs/sweep", capsys)
    assert code == 2 and f": titanrun {command} runs/sweep/" in error


def test_stages_are_tagged_archived_and_removed_as_a_whole(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("runs tag runs/whole good", capsys)[:2] == (
        0,
        "runs/whole/first  good\nruns/whole/second  good\n",
    )
    assert run("runs archive runs/whole", capsys)[0] == 0
    assert (place / "runs/.archive/whole/second/tags.json").is_file()
    assert run("runs archive --restore runs/.archive/whole", capsys)[0] == 0
    assert run("runs rm runs/whole", capsys)[0] == 0 and (place / "runs/whole").exists()
    assert run("runs rm runs/whole --yes", capsys)[0] == 0 and not (place / "runs/whole").exists()


def test_stop_and_removal_are_of_the_stage_that_runs(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = run("stop runs/whole", capsys)
    assert code == 2 and "no stage in 'runs/whole' is running" in error
    for module in ("titanrun.cli.run_groups", "titanrun.runs.run_archive"):
        monkeypatch.setattr(
            f"{module}.get_run_state",
            lambda summary, here: "running" if "first" in summary.run else "finished",
        )
    assert find_running_stage("runs/whole") == "runs/whole/first"
    for command in ("runs rm runs/whole --yes", "runs archive runs/whole"):
        code, _, error = run(command, capsys)
        assert code == 2 and "runs/whole/first --wait" in error
    assert (place / "runs/whole/first").exists()
