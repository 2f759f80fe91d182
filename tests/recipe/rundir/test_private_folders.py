"""Run directories are readable by their user only.

Row B18 of the defect list: they were 0755 with files of 0644.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory

START = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny, steps: 2}\n"
)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The umask of most machines."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def written(folder: Path, *overrides: str) -> Path:
    (folder / "recipe.yaml").write_text(START)
    resolved = resolve_recipe(str(folder / "recipe.yaml"), overrides, environment={})
    directory = select_run_directory(resolved, datetime.now(UTC))
    write_run_directory(directory, resolved, ["titanrun"], datetime.now(UTC), environment={})
    return directory.path


def test_a_new_run_directory_is_private_and_its_parent_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in (written(tmp_path), written(tmp_path, "dump_folder=deep/er/run")):
        assert run.stat().st_mode & 0o777 == 0o700
        assert run.parent.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_is_there_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir(mode=0o755)
    assert written(tmp_path, "dump_folder=shared").stat().st_mode & 0o777 == 0o755
