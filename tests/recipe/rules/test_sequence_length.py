"""Sequences that are longer than the context of the model."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel, max_seq_len: 128}
training: {dataset: tiny, seq_len: %d}
validation: {enable: %s, dataset: tiny, seq_len: %d}
"""


@pytest.mark.parametrize(
    ("training", "enable", "validation", "sections"),
    [
        (128, "true", 128, []),
        (256, "true", 256, ["training"]),
        (128, "true", 256, ["validation"]),
        (128, "false", 256, []),
        (256, "true", 192, ["training", "validation"]),
    ],
)
def test_each_length_beyond_the_context_is_told_once(
    training: int, enable: str, validation: int, sections: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE % (training, enable, validation), encoding="utf-8")
    try:
        found = resolve_recipe(str(path), environment={}).warnings
    except ProblemsFound as error:
        found = error.problems
    told = [problem.path[0] for problem in found if "exceeds model.max_seq_len" in problem.message]
    assert told == sections
