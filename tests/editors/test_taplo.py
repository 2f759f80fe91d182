"""taplo, the TOML checker behind Even Better TOML and other editors, with the schema that the first
line of a recipe names."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEBUG = ROOT / "recipes" / "llama3_debug.toml"
PLACE = re.compile(r"error: (.*)\n\s+┌─ .*:(\d+):\d+")

pytestmark = pytest.mark.editors


def lint(tools: Path, file: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [tools / "taplo", "lint", file], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_shipped_recipe_is_clean(tools: Path) -> None:
    done = lint(tools, DEBUG)
    assert done.returncode == 0, done.stderr


def test_an_unknown_key_and_a_wrong_name_are_shown_on_their_lines(
    tools: Path, tmp_path: Path
) -> None:
    text = DEBUG.read_text(encoding="utf-8").replace("../schemas", str(ROOT / "schemas"))
    text = text.replace('"adamw"', '"adamx"').replace("decay_ratio", "decay_ration")
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    done = lint(tools, tmp_path / "mine.toml")
    lines = text.splitlines()
    shown = {
        (int(line), word)
        for message, line in PLACE.findall(done.stderr)
        for word in re.findall("adamx|decay_ration", message)
    }
    assert (lines.index('name = "adamx"') + 1, "adamx") in shown
    assert (lines.index("decay_ration = 0.8") + 1, "decay_ration") in shown
    assert done.returncode != 0
