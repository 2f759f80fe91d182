"""The commit and the dirty diff of a folder, bounded, without a lock and without secrets."""

import subprocess
from pathlib import Path

import pytest

from titanrun.recipe.rundir import git_state as module
from titanrun.recipe.rundir.git_state import TRUNCATION_NOTE, GitState, read_git_state


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.email=a@b", "-c", "user.name=n", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init", "-b", "trunk")
    (tmp_path / "notes.txt").write_text("".join(f"line {number}\n" for number in range(9)))
    git("add", ".")
    git("commit", "-m", "first")
    return tmp_path


def state_of(folder: Path, *hidden: str) -> GitState:
    found = read_git_state(folder, hidden)
    assert found is not None
    return found


def test_a_clean_folder_has_its_commit_and_no_diff(repository: Path) -> None:
    found = state_of(repository)
    assert (len(found.commit), found.branch, found.diff, found.untracked, found.is_dirty) == (
        40,
        "trunk",
        "",
        (),
        False,
    )


def test_outside_of_a_repository_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert read_git_state(tmp_path, ()) is None


def test_a_changed_line_and_the_lines_around_it_lose_their_secrets(repository: Path) -> None:
    notes = repository / "notes.txt"
    notes.write_text(
        notes.read_text()
        .replace("line 3", "line canary-7")
        .replace("line 5", "DB_PASSWORD=abcdefgh01234567")
    )
    (repository / "canary-7.txt").touch()
    found = state_of(repository, "canary-7")
    assert found.is_dirty
    assert "+line ***" in str(found.diff)
    assert "+DB_PASSWORD=***" in str(found.diff)
    assert found.untracked == ("***.txt",)
    assert "canary-7" not in repr(found)


def test_a_git_that_does_not_answer_leaves_open_what_it_would_have_said(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = repository / "broken"
    broken.write_text('#!/bin/sh\ncase "$*" in *diff*) exit 1;; esac\nexec git "$@"\n')
    broken.chmod(0o755)
    monkeypatch.setattr(module, "GIT", (str(broken),))
    found = state_of(repository)
    assert (found.diff, found.is_dirty, len(found.commit)) == (None, None, 40)


def test_a_long_diff_is_cut_at_a_line(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 400)
    (repository / "notes.txt").write_text("".join(f"changed {number}\n" for number in range(100)))
    *lines, cut = str(state_of(repository).diff).splitlines(keepends=True)
    assert cut == TRUNCATION_NOTE
    assert 100 < sum(map(len, lines)) <= 400
    assert lines[-1].endswith("\n")


def test_a_diff_starts_no_program_that_the_folder_names(repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.txt diff=mine\n")
    with (repository / ".git" / "config").open("a") as config:
        config.write(
            f'[diff "mine"]\n\tcommand = touch {repository}/ran\n\ttextconv = touch '
            f"{repository}/ran;\n"
        )
    (repository / "notes.txt").write_text("other\n")
    assert "+other" in str(state_of(repository).diff)
    assert not (repository / "ran").exists()
