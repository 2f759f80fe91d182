"""What holds for every command: it answers through the installed script, fits a terminal, is
documented, and takes -q and -v."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "recipes" / "llama3_debug.yaml")
Run = Callable[..., subprocess.CompletedProcess[str]]
CALLS = {
    "train": [DEBUG, "training.steps=0"],
    "validate": [DEBUG],
    "diff-config": [DEBUG, DEBUG],
    "plan": [DEBUG],
    "show": [DEBUG, "optimizer"],
    "explain": ["training.steps"],
    "ls": ["models"],
    "cat": ["llama3_debug"],
    "cp": ["llama3_debug", "mine.yaml"],
    "init": ["-o", "mine.yaml"],
    "doctor": ["--no-training"],
    "completion": ["bash"],
    "schema": [],
    "runs": ["ls", "."],
    "data": ["verify", "."],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_it_answers_through_the_installed_script(command: str, titanrun: Run) -> None:
    done = titanrun(command, *CALLS.get(command, ["--help"]))
    assert done.returncode == (2 if command == "train" else 0), done.stderr
    assert "internal" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_its_help_fits_a_terminal_of_80_columns(command: str, titanrun: Run) -> None:
    text = titanrun(command, "--help", env={**os.environ, "COLUMNS": "80"}).stdout
    too_long = [
        line for line in text.splitlines() if len(line) > 80 and not line.startswith("  titanrun ")
    ]
    assert too_long == []
    assert f"\n  titanrun {command}" in text.split("examples:")[1]
    assert "-q, --quiet" in text
    assert "-v, --verbose" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_documented_with_its_options(command: str, titanrun: Run) -> None:
    page = (ROOT / "docs" / "commands" / f"{command}.md").read_text(encoding="utf-8")
    assert page == titanrun(command, "--help-markdown").stdout
    assert f"commands/{command}.md" in (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["diff-config", "cp", "init", "doctor"])
def test_quiet_leaves_only_what_is_wrong(command: str, titanrun: Run) -> None:
    done = titanrun(
        command, *CALLS[command], "--quiet", "optimizer.lr=1" if command == "diff-config" else "-q"
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == (1 if command == "diff-config" else 0)


@pytest.mark.parametrize("command", ["show", "diff-config", "cat", "cp"])
def test_verbose_names_what_was_read(command: str, titanrun: Run) -> None:
    assert f"read {DEBUG}" in titanrun(command, *CALLS[command], "-v").stderr


def test_data_comes_as_json_too(titanrun: Run) -> None:
    shown = json.loads(titanrun("show", DEBUG, "--json", "optimizer.lr=3").stdout)
    assert shown["optimizer"]["lr"] == 3.0
    assert (
        json.loads(titanrun("show", DEBUG, "optimizer.lr", "--json").stdout)
        == shown["optimizer"]["lr"] - 3 + 0.002
    )
    (source,) = titanrun(
        "show", DEBUG, "optimizer.lr", "--json", "--sources", "optimizer.lr=3"
    ).stdout.splitlines()
    found = json.loads(source)
    assert (found["path"], found["value"], found["source"], found["file"]) == (
        "optimizer.lr",
        3.0,
        "override",
        "<override 1>",
    )
    assert found["shadowed"][0].startswith(DEBUG)
    assert json.loads(titanrun("explain", "unknown-key", "--json").stdout)["word"] == "unknown-key"
    assert titanrun("diff-config", DEBUG, DEBUG, "optimizer.lr=1", "--json").stdout.startswith("{")
