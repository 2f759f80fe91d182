"""`titanrun validate` through the installed script: levels, loudness, formats."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "recipes" / "llama3_debug.yaml")
Run = Callable[..., subprocess.CompletedProcess[str]]
SOUND = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\ntraining: {dataset: "
    "tiny, steps: 4}\n"
)
PICKY = '''
from typing import ClassVar, Literal
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config.fields import numerics

PLUGIN_API = 1


class PickyConfig(OptimizerConfig):
    """An optimizer that refuses every model."""

    name: Literal["picky"] = "picky"
    builds: ClassVar = "picky:build_picky"
    lr: float = numerics(0.1)
    """Learning rate."""


def build_picky(config, *, parameters):
    raise ValueError(f"{len(parameters)} parameters are too many\\nfor me")
'''


@pytest.fixture
def picky(tmp_path: Path) -> dict[str, str]:
    """An environment in which a plug-in with that optimizer is installed."""
    (tmp_path / "picky.py").write_text(PICKY, encoding="utf-8")
    info = tmp_path / "picky-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: picky\nVersion: 1\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text("[titanrun.plugins]\npicky = picky\n", encoding="utf-8")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }


def test_build_reports_what_a_part_refuses_at_its_line(
    titanrun: Run, tmp_path: Path, picky: dict[str, str]
) -> None:
    text = f"{SOUND}optimizer:\n  name: picky\nplugins: [picky]\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert titanrun("validate", "mine.yaml", env=picky).returncode == 0
    done = titanrun("validate", "mine.yaml", DEBUG, "--level", "build", "--json", env=picky)
    (problem,) = [json.loads(line) for line in done.stdout.splitlines()]
    line = text.splitlines().index("  name: picky") + 1
    assert (problem["file"], problem["line"], problem["path"]) == ("mine.yaml", line, "optimizer")
    assert problem["message"].endswith("parameters are too many")
    assert (problem["code"], problem["rule"], done.returncode) == ("conflict", "can-be-built", 2)


def test_verbose_names_the_files_and_quiet_says_nothing(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SOUND, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\n", encoding="utf-8")
    loud = titanrun("validate", "mine.yaml", "-v")
    assert loud.stderr.splitlines() == [
        "mine.yaml: level rules",
        "read mine.yaml",
        "read base.yaml (included from mine.yaml:1:10)",
        "mine.yaml: ok",
        "next: titanrun train mine.yaml",
    ]
    assert titanrun("validate", "mine.yaml", "-q").stderr == ""
    both = titanrun("validate", "mine.yaml", "-q", "-v")
    assert both.returncode == 2
    assert "not allowed with argument" in both.stderr


def test_fix_writes_what_is_certain_says_so_and_finds_nothing_the_second_time(
    titanrun: Run, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        SOUND.replace("steps: 4", 'Steps: "4"').replace("tokenizer", "tokeniers"), encoding="utf-8"
    )
    before = titanrun("validate", "mine.yaml")
    assert before.returncode == 2
    assert before.stderr.endswith("\n\n--fix can correct 1 of these 2 problems\n")
    (found,) = [
        fix
        for line in titanrun("validate", "mine.yaml", "--json").stdout.splitlines()
        if (fix := json.loads(line)["fix"])
    ]
    assert found == {
        "file": "mine.yaml",
        "line": 4,
        "col": 27,
        "end_col": 32,
        "replacement": "steps",
    }
    done = titanrun("validate", "mine.yaml", "--fix")
    assert done.stderr.splitlines()[:3] == [
        "fixed mine.yaml:4:27: Steps -> steps",
        'fixed mine.yaml:4:34: "4" -> 4',
        "error[unknown-key]: unknown key 'tokeniers' in the recipe",
    ]
    assert done.stderr.endswith("\n\n--fix corrected 2 mistakes; 1 problem is left\n")
    assert done.returncode == 2
    text = mine.read_text(encoding="utf-8")
    assert text == SOUND.replace("tokenizer", "tokeniers")
    again = titanrun("validate", "mine.yaml", "--fix").stderr
    assert "fixed" not in again
    told = "\n\n--fix corrected nothing: no problem has a certain correction\n"
    assert again.endswith(told) and told not in done.stderr
    assert mine.read_text(encoding="utf-8") == text


def test_sarif_carries_the_correction(titanrun: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SOUND.replace("steps", "Steps"), encoding="utf-8")
    (result,) = json.loads(titanrun("validate", "mine.yaml", "--format", "sarif").stdout)["runs"][
        0
    ]["results"]
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"][0]["insertedContent"] == {"text": "steps"}


def test_no_plugin_of_pydantic_is_imported(tmp_path: Path) -> None:
    (tmp_path / "spy.py").write_text("raise SystemExit('imported')\n")
    info = tmp_path / "spy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pydantic]\nspy = spy:plugin\n")
    (tmp_path / "recipe.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "titanrun", "validate", "recipe.yaml"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        0,
        "recipe.yaml: ok\nnext: titanrun train recipe.yaml\n",
    )
