"""Weights of a mixture that are not in one unit."""

from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.resolve import resolve_recipe

RULE = "mixture-weights-have-one-scale"


RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny, seq_len: 64}
"""


def find_warnings(weights: list[float], file: Path) -> list[Problem]:
    file.write_text(RECIPE, encoding="utf-8")
    sources = ", ".join(f"{{dataset: tiny, weight: {weight}}}" for weight in weights)
    dataset = f"training.dataset={{name: mixture, sources: [{sources}]}}"
    found = resolve_recipe(str(file), [dataset], environment={}).warnings
    return [problem for problem in found if problem.rule == RULE]


@pytest.mark.parametrize(
    ("weights", "warned"),
    [
        ([70, 0.3], True),
        ([0.7, 30, 60], True),
        ([0.7, 0.3], False),
        ([0.995, 0.005], False),
        ([99.5, 0.5], False),
        ([1, 0.005], False),
        ([3, 0.5], False),
        ([5e9, 2e6], False),
    ],
)
def test_only_weights_that_look_like_two_units_are_warned_about(
    weights: list[float], warned: bool, tmp_path: Path
) -> None:
    assert bool(find_warnings(weights, tmp_path / "r.yaml")) == warned
