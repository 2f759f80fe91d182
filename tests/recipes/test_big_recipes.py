"""Recipes for many GPUs validate on the ranks that their first lines name, and what a rank keeps
fits into its memory there."""

import json
import re

import pytest

from titanrun.cli import plan
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import resolve_recipe

DEVICES = re.compile(r"(\d+) GPUs with 80 GB")
BIG = {
    entry.name: match
    for entry in shipped_recipes.list_shipped_recipes()
    if (match := DEVICES.fullmatch(entry.header["devices"]))
}
"""Every big recipe of a family, and those that finetune."""
MODELS = {
    *(
        "llama3_8b.yaml",
        "llama3_70b.yaml",
        "llama3_405b.yaml",
        "llama4_17bx16e.yaml",
        "llama4_17bx128e.yaml",
    ),
    *(
        "qwen3_0.6b.yaml",
        "qwen3_1.7b.yaml",
        "qwen3_32b.yaml",
        "deepseek_v3_16b.yaml",
        "deepseek_v3_671b.yaml",
    ),
    *("gpt_oss_20b.yaml", "gpt_oss_120b.yaml", "flux_dev.yaml", "flux_schnell.yaml"),
}


def test_every_family_has_its_big_recipes() -> None:
    assert set(BIG) >= MODELS


@pytest.mark.parametrize("name", BIG)
def test_a_big_recipe_resolves_on_its_ranks(name: str) -> None:
    resolved = resolve_recipe(
        str(shipped_recipes.get_shipped_recipe(name).path), environment={}, ranks=int(BIG[name][1])
    )
    assert not resolved.warnings


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_what_a_rank_of_a_big_recipe_keeps_fits(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        plan.run(
            [
                str(shipped_recipes.get_shipped_recipe(name).path),
                "--world-size",
                BIG[name][1],
                "--json",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["memory_total"] <= told["memory_of_device"]
    assert told["warnings"] == []
