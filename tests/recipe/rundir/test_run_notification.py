"""Whoever wants to know that a run has ended is told by a command."""

from pathlib import Path

import pytest

from titanrun.recipe.rundir import run_notification
from titanrun.recipe.rundir.run_notification import NOTIFY_VARIABLE, run_notify_command

PATH = {"PATH": "/usr/bin:/bin"}


def told(run: Path, command: str) -> str | None:
    return run_notify_command(
        {**PATH, NOTIFY_VARIABLE: command},
        run,
        state="failed",
        step=7,
        exit_code=5,
        message="loss is nan; $(rm x)",
    )


def test_the_command_finds_what_happened_in_its_environment(tmp_path: Path) -> None:
    words = "$TITANRUN_RUN|$TITANRUN_STATE|$TITANRUN_STEP|$TITANRUN_EXIT_CODE|$TITANRUN_MESSAGE"
    assert told(tmp_path, f'echo "{words}" > told') is None
    assert (tmp_path / "told").read_text() == f"{tmp_path}|failed|7|5|loss is nan; $(rm x)\n"


def test_nobody_is_told_without_a_command(tmp_path: Path) -> None:
    assert (
        run_notify_command(PATH, tmp_path, state="finished", step=1, exit_code=0, message="")
        is None
    )


def test_a_command_that_fails_or_takes_too_long_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        told(tmp_path, "echo no such channel >&2; exit 3")
        == "TITANRUN_NOTIFY ended with exit code 3: no such channel"
    )
    monkeypatch.setattr(run_notification, "NOTIFY_TIMEOUT_SECONDS", 0.1)
    assert "timed out" in str(told(tmp_path, "exec sleep 20"))
