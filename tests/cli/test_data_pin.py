"""`titanrun data pin`, with the hub on this machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.components.data.test_hub_dataset import COMMIT, hub_environment  # noqa: F401
from titanrun.config.read_source import read_source
from titanrun.config.tree import to_plain_data

BLOCK = """version: 1
# of Monday
training:
  dataset:
    name: chat
    repo: owner/words  # the words
    subset: chats
validation:
  further:
    - id: other
      dataset: {name: chat, repo: "owner/words", revision: main}
    - id: third
      dataset: {name: hub, repo: owner/words, revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}
    - id: fourth
      dataset:
        repo: owner/words
        name: chat
"""
TOML = """version = 1
[training.dataset]
name = "chat"
repo = "owner/words"
[validation]
dataset = {name = "chat", repo = "owner/words"}
"""


def pin(file: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "titanrun", "data", "pin", str(file), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), [("recipe.yaml", BLOCK), ("recipe.toml", TOML)])
def test_commits_are_printed_and_written(
    name: str,
    text: str,
    tmp_path: Path,
    hub_environment: dict[str, str],  # noqa: F811
) -> None:
    file = tmp_path / name
    file.write_text(text)
    paths = (
        ["training.dataset", "validation.dataset"]
        if name.endswith("toml")
        else ["training.dataset", *(f"validation.further[{n}].dataset" for n in (0, 2))]
    )
    done = pin(file, hub_environment)
    assert done.stdout.splitlines() == [f"{path}.revision={COMMIT}" for path in paths], done.stderr
    assert file.read_text() == text
    assert pin(file, hub_environment, "--write").stdout == done.stdout
    written = file.read_text()
    plain = to_plain_data(read_source(str(file)))
    assert plain["training"]["dataset"]["revision"] == COMMIT
    # nothing else has changed
    assert written.count(COMMIT) == len(paths)
    for line in text.splitlines():
        assert line in written or "repo" in line
    again = pin(file, hub_environment, "--write")
    assert (again.returncode, again.stdout) == (0, "") and file.read_text() == written


@pytest.mark.slow
def test_what_the_hub_does_not_have_is_told_at_its_line(
    tmp_path: Path,
    hub_environment: dict[str, str],  # noqa: F811
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("training:\n  dataset: {name: chat, repo: owner/none}\n")
    done = pin(file, hub_environment)
    assert done.returncode == 2 and "recipe.yaml:2:31" in done.stderr
    assert "the Hub names no commit of 'owner/none' at 'main'" in done.stderr
