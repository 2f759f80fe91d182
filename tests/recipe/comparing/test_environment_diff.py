"""What is named before a run is made again: one line a difference between what run.json records and
what is here."""

from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from titanrun.recipe.comparing.environment_diff import CurrentEnvironment, diff_starts
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_metadata import build_start_record

RECIPE = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\ntraining: {dataset: "
    "{name: text, path: 'data/*.txt'}}\n"
)
MACHINE = {"device": "cuda", "device_name": "H100", "driver": "570.1", "threads": 8}
GIT = {"commit": "a" * 40, "branch": "main", "dirty": True, "diff": "git-1.diff", "untracked": []}
PLUGIN = {
    "name": "mine",
    "package": "mine",
    "version": "1.0",
    "files": {"mine/a.py": "1", "mine/b.py": "2"},
}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)
    Path("data").mkdir()
    for name in ("a", "b"):
        Path(f"data/{name}.txt").write_text(name)
    found, diff = build_start_record(
        resolve_recipe("recipe.yaml", environment={}).run,
        [],
        datetime(2026, 11, 21),
        secret_values=(),
    )
    assert diff == ""
    found["environment"] |= {"git": GIT, "plugins": [PLUGIN]}
    return {**found, "machine": MACHINE}


def said(start: dict[str, Any], **changes: Any) -> list[str]:
    """What is said where the environment, or the machine, has these values now."""
    machine = {**MACHINE, **changes.pop("machine", {})}
    return diff_starts(
        [start], CurrentEnvironment({**deepcopy(start["environment"]), **changes}, machine)
    )


def test_where_all_is_as_it_was_nothing_is_said(start: dict[str, Any]) -> None:
    assert said(start) == []


def test_each_difference_of_the_environment_has_a_line(start: dict[str, Any]) -> None:
    packages = {
        **start["environment"]["packages"],
        "torch": "2.99.0",
        "numpy": None,
        "brand-new": "1",
    }
    packages.pop("numpy")
    was = start["environment"]["packages"]
    assert said(start, packages=packages) == [
        f"package numpy {was['numpy']} -> not installed",
        f"package torch {was['torch']} -> 2.99.0",
        "package brand-new not installed -> 1",
    ]
    assert said(start, python="3.99.0", code="0") == [
        f"python {start['environment']['python']} -> 3.99.0",
        "titanrun has different code",
    ]
    assert said(start, machine={"driver": "580.2", "threads": 4}) == [
        "driver 570.1 -> 580.2",
        "threads 8 -> 4",
    ]


def test_another_commit_and_other_uncommitted_changes_have_a_line(start: dict[str, Any]) -> None:
    assert said(start, git={**GIT, "commit": "b" * 40, "diff": None}) == [
        f"git commit {'a' * 12} -> {'b' * 12}",
        "uncommitted changes: git-1.diff -> none",
    ]
    assert said(start, git={**GIT, "dirty": None, "diff": None}) == [
        "uncommitted changes are unknown: git failed"
    ]
    assert said(start, git=None) == ["the working directory was in a git repository"]


def test_a_plug_in_of_another_version_or_with_other_code_has_a_line(start: dict[str, Any]) -> None:
    other = {**PLUGIN, "version": "1.1", "files": {"mine/a.py": "1", "mine/b.py": "3"}}
    assert said(start, plugins=[other]) == [
        "plug-in mine 1.0 -> 1.1",
        "plug-in mine has different code: mine/b.py",
    ]
    assert said(start, plugins=[]) == ["plug-in mine is not installed"]


def test_changed_and_missing_data_has_a_line(start: dict[str, Any]) -> None:
    Path("data/b.txt").write_text("changed")
    assert said(start) == ["data/*.txt has different content (b.txt): 2 -> 8 bytes"]
    for name in ("a", "b"):
        Path(f"data/{name}.txt").unlink()
    assert said(start) == ["data/*.txt not found"]


def test_a_large_file_that_was_written_to_has_a_line_though_its_samples_are_the_same(
    start: dict[str, Any],
) -> None:
    start["inputs"][0] |= {"sampled": True, "modified": "2026-01-01T00:00:00+00:00"}
    assert said(start) == ["data/*.txt was modified since, but its sampled bytes are unchanged"]


def test_a_line_that_is_true_of_some_starts_says_of_which(start: dict[str, Any]) -> None:
    later = {
        **start,
        "machine": {**MACHINE, "driver": "560.0"},
        "changes": ["training.steps 4 -> 8"],
    }
    assert diff_starts([start, later], CurrentEnvironment(start["environment"], MACHINE)) == [
        "recipe changed: training.steps 4 -> 8 (start 2 of 2)",
        "driver 560.0 -> 570.1 (start 2 of 2)",
    ]


def test_what_was_not_recorded_is_said() -> None:
    here = CurrentEnvironment({}, MACHINE)
    assert diff_starts([], here) == ["run.json not found: the environment of the run is unknown"]
    assert diff_starts([{"time": "then"}], here) == ["environment is not recorded"]
