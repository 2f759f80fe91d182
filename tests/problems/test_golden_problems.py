"""Every kind of mistake gets the message it should: one folder a case, the message in expected.txt.

`TITANRUN_WRITE_GOLDEN=1 pytest tests/problems` writes the expected files anew; read the diff before
you commit it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.config.diagnostics import render_problems
from titanrun.config.problems import ProblemsFound
from titanrun.recipe import builtins
from titanrun.recipe.resolving.read_recipe import read_tree
from titanrun.recipe.resolving.resolve import check_tree, resolve_recipe, resolve_run
from titanrun.recipe.rules.registry import RULES

UNBUILT_CASES = (
    *("expert-ranks-need-experts", "settings-of-no-parallelism", "settings-of-other-stages"),
    "settings-that-nothing-reads",
)
UNBUILT = [Path(__file__).parent / name for name in UNBUILT_CASES]
FOLDERS = sorted(
    folder
    for folder in Path(__file__).parent.iterdir()
    if folder.is_dir() and folder.name != "__pycache__"
)
# found while a run reads its data; see test_golden_sources.py
SOURCE_FAULTS = [folder for folder in FOLDERS if folder.name.startswith("source-")]
CASES = [folder for folder in FOLDERS if folder not in SOURCE_FAULTS]


def words(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


# their model has experts and lacks what shipped families have; see the script
OF_EXAMPLE_FAMILY = [
    folder for folder in CASES if "example_moe" in "".join(words(folder / "recipe.yaml"))
]


def message(folder: Path) -> str:
    recipe = "recipe.toml" if (folder / "recipe.toml").exists() else "recipe.yaml"
    inputs = words(folder / "level.txt") == ["environment"]
    ranks = next(map(int, words(folder / "ranks.txt")), None)
    try:
        resolved = resolve_recipe(
            recipe,
            words(folder / "overrides.txt"),
            environment={},
            should_check_inputs=inputs,
            ranks=ranks,
        )
    except ProblemsFound as found:
        return render_problems(found.problems).replace(str(folder), "<folder>")
    return render_problems(resolved.warnings)


def check_text(folder: Path, got: str) -> None:
    expected = folder / "expected.txt"
    if os.environ.get("TITANRUN_WRITE_GOLDEN"):
        expected.write_text(got, encoding="utf-8")
    assert got == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "folder",
    [folder for folder in CASES if folder not in OF_EXAMPLE_FAMILY],
    ids=lambda folder: folder.name,
)
def test_problem_reads_as_it_should(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    check_text(folder, message(folder))


def test_problems_of_the_example_family_read_as_they_should() -> None:
    script = Path(__file__).parent / "with_example_family.py"
    done = subprocess.run(
        [sys.executable, script, *OF_EXAMPLE_FAMILY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for folder, got in json.loads(done.stdout).items():
        check_text(Path(folder), got)


def test_every_rule_has_a_golden_case() -> None:
    builtins.load_rules()
    covered = "".join((folder / "expected.txt").read_text(encoding="utf-8") for folder in CASES)
    missing = {
        rule
        for rule in RULES
        if f"/{rule}]" not in covered and rule not in ("not-built", "extras-installed")
    }
    # of a setting that is not built, that is told alone
    hidden = {rule for folder in UNBUILT for rule in speaking(folder)} if missing else set()
    assert missing <= hidden


def speaking(folder: Path) -> set[str]:
    """The rules that find something in a recipe, whether it is told or not."""
    reading = read_tree(str(folder / "recipe.yaml"), words(folder / "overrides.txt"), {})
    run = resolve_run(check_tree(reading.tree), reading.tree, "recipe.yaml", None)
    return {
        entry.id
        for entry in RULES.values()
        if entry.level == "rules" and any(entry.check(run, None))
    }
