"""Commit messages have a short subject without a full stop, and narrow bodies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tools.check_commits import find_faults

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "check_commits.py"


@pytest.mark.parametrize(
    ("message", "faults"),
    [
        ("Add a rule\n\nBecause two keys contradict each other.\n", []),
        ("Add a rule\n# Please enter the commit message\n", []),
        ("x" * 72, []),
        ("x" * 73, ["the subject has 73 columns, at most 72 are allowed"]),
        ("Add a rule.", ["the subject ends in a full stop"]),
        ("feat(recipe): add a rule", ["the subject has a prefix"]),
        ("Add a rule\nand another", ["the second line is not empty"]),
        ("Add a rule\n\n" + "ab " * 30, [f"a line of the body has 89 columns: {'ab ' * 29}ab"]),
        ("Add a rule\n\nhttps://" + "x" * 90, []),
        ("Merge branch 'one' of a place with a name that is longer than what is allowed.", []),
        ("", ["the first line is empty"]),
    ],
)
def test_faults_of_a_message_are_named(message: str, faults: list[str]) -> None:
    assert list(find_faults(message)) == faults


def test_the_hook_and_the_range_refuse_the_same_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            check=True,
        )

    def check(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, TOOL, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "Start")
    git("commit", "--quiet", "--allow-empty", "--message", "Add one")
    assert check("--range", "HEAD~1..HEAD") == (0, "")
    (tmp_path / "message").write_text("Add two.\n")
    git("commit", "--quiet", "--allow-empty", "--file", "message")
    for arguments in (("message",), ("--range", "HEAD~2..HEAD")):
        code, said = check(*arguments)
        assert (code, said.count("full stop")) == (1, 1)


def test_the_hook_is_one_of_the_clone() -> None:
    config = YAML(typ="safe").load(ROOT / ".pre-commit-config.yaml")
    [hook] = [hook for hook in config["repos"][0]["hooks"] if hook.get("stages") == ["commit-msg"]]
    assert hook["entry"].split()[-1] == "tools/check_commits.py"
    assert "commit-msg" in config["default_install_hook_types"]
