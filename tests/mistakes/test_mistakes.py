"""Mistakes made on purpose in a copy of recipes/llama3_8b.yaml: each file is a command, the change,
and what the command answers.

`TITANRUN_WRITE_GOLDEN=1 pytest tests/mistakes` writes the answers anew; read the diff before you
commit it.
"""

import os
import shlex
from pathlib import Path

import pytest

from titanrun.cli.main import run
from titanrun.recipe.reference import shipped_recipes

CASES = sorted((Path(__file__).parent / "llama3_8b").glob("*.txt"))
RECIPE = "mine.yaml"


def sections(case: str) -> tuple[str, str, str]:
    """The command, the change and the answer, with an empty line between them."""
    head, answer = case.split("\n\n", maxsplit=1)
    command, _, change = head.partition("\n")
    return command, change, answer


def changed(text: str, change: str) -> str:
    """The text after a change: lines that begin with - go, lines with + come, the others say
    where."""
    if not change:
        return text
    lines = change.splitlines()
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
    assert text.count(old) == 1, f"stands {text.count(old)} times in the recipe:\n{old}"
    return text.replace(old, new)


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_mistake_gets_the_answer_it_should(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(["cp", "llama3_8b", RECIPE, "-q"])
    command, change, answer = sections(file.read_text(encoding="utf-8"))
    recipe = Path(RECIPE)
    recipe.write_text(changed(recipe.read_text(encoding="utf-8"), change), encoding="utf-8")
    capsys.readouterr()
    words = shlex.split(command)
    assert words[:2] == ["$", "titanrun"]
    code = run(words[2:])
    out, error = capsys.readouterr()
    got = f"{out}{error}exit {code}\n".replace(
        str(shipped_recipes.get_shipped_folder()), "<shipped>"
    ).replace(str(tmp_path), "<folder>")
    if os.environ.get("TITANRUN_WRITE_GOLDEN"):
        file.write_text(
            f"{command}\n{change}\n\n{got}" if change else f"{command}\n\n{got}", encoding="utf-8"
        )
    assert got == answer


def test_forty_mistakes_are_made() -> None:
    assert len(CASES) >= 40
