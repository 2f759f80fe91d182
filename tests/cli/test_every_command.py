"""What holds for every command: it answers through the installed script, fits a terminal, is
documented, and takes -q and -v."""

import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from titanrun.cli import main
from titanrun.cli.arguments import CommandParser
from titanrun.cli.command_docs import wrap_examples
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
def test_it_answers_through_the_installed_script(command: str, installed_titanrun: Run) -> None:
    done = installed_titanrun(command, *CALLS.get(command, ["--help"]))
    assert done.returncode == (2 if command == "train" else 0), done.stderr
    assert "internal" not in done.stderr


def read_help(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """The help of a command in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main.run([*words, "--help"]) == 0
    return out.getvalue()


def list_subcommands(text: str) -> list[str]:
    """The subcommands that a help names: `ls, show or rm; see each with --help`."""
    found = re.search(r" action ((?:[a-z]+(?:, | or |;))+) see each", " ".join(text.split()))
    return re.findall(r"[a-z]+", found[1].replace(" or ", " ")) if found else []


@pytest.mark.parametrize("command", COMMANDS)
def test_its_help_fits_a_terminal_of_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row C15: examples, usages with many choices and the summaries were wider."""
    text = read_help(monkeypatch, command)
    helps = {(command,): text} | {
        (command, inner): read_help(monkeypatch, command, inner) for inner in list_subcommands(text)
    }
    for words, shown in helps.items():
        assert [line for line in shown.splitlines() if len(line) > 80] == [], words
        assert f"\n  titanrun {' '.join(words)}" in shown.split("examples:")[1]
        assert "-q, --quiet" in shown
        assert "-v, --verbose" in shown
    assert (len(helps) > 1) == (command in {"checkpoint", "data", "runs"})


def test_the_list_of_commands_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = read_help(monkeypatch)
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert all(f"\n  {command} " in shown for command in COMMANDS)


def test_help_is_never_broken_inside_a_word() -> None:
    parser = CommandParser("train", "Summary of the-long-hyphenated-word " * 9, "  titanrun x")
    parser.add_argument("--one", help="see --option-with-hyphens and data-parallel ranks " * 9)
    words = set(parser.format_help().split())
    assert {"the-long-hyphenated-word", "--option-with-hyphens", "data-parallel"} <= words
    assert not any(word.endswith("-") for word in words)


def test_a_long_example_can_still_be_pasted() -> None:
    line = "  titanrun eval models/llama 'evaluation.tasks=[{name: lm_eval, task: hella}]' --quiet"
    shown = wrap_examples(line, 60)
    assert all(len(part) <= 60 for part in shown.splitlines())
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(line)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_documented_with_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "commands" / f"{command}.md").read_text(encoding="utf-8")
    assert main.run([command, "--help-markdown"]) == 0
    assert page == capsys.readouterr().out
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


@pytest.mark.parametrize(
    "words",
    [
        "checkpoint ls",
        "checkpoint show",
        "diff-config",
        "runs compare",
        "runs diff",
        "runs ls",
        "runs show",
        "sweep",
        "validate",
    ],
)
def test_a_format_of_json_has_the_short_name_json(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = " ".join(read_help(monkeypatch, *words.split()).split())
    assert "--format" in told and "--json short for --format json" in told
