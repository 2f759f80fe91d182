"""A type checker knows the types of titanrun in a script of its users."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """import titanrun

recipe = titanrun.load_recipe("mine.yaml", ["training.steps=50"])
reveal_type(recipe)
for problem in titanrun.validate_recipe("mine.yaml"):
    reveal_type(problem.message)
titanrun.load_recipe(3)
"""


@pytest.mark.slow
def test_mypy_sees_the_types_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"Revealed type is \"(.*)\"", done.stdout) == [
        "titanrun.recipe.recipe.Recipe",
        "str",
    ], done.stdout
    errors = re.findall(r"script.py:(\d+): error", done.stdout)
    assert errors == ["7"], done.stdout
