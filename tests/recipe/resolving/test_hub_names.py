"""Names of models on the Hub within recipes."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.hub_models import HubModel, iter_hub_models, parse_hub_name
from titanrun.recipe.resolving.read_recipe import compose_recipe

COMMIT = "c" * 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models/llama", None),
        ("hub:owner/name", HubModel("owner/name", "main")),
        (f"hub:owner/name@{COMMIT}", HubModel("owner/name", COMMIT)),
    ],
)
def test_a_name_has_an_owner_and_a_revision(text: str, expected: HubModel | None) -> None:
    assert parse_hub_name(text) == expected


def test_an_incomplete_name_is_told_how_to_be_written() -> None:
    with pytest.raises(ProblemsFound) as found:
        parse_hub_name("hub:name", ("model", "hf_assets_path"))
    (problem,) = found.value.problems
    assert problem.path == ("model", "hf_assets_path")
    assert problem.hint == "write hub:OWNER/NAME or hub:OWNER/NAME@REVISION"


def test_valid_names_of_a_recipe_are_found(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "version: 1\nmodel: {name: llama3, hf_assets_path: hub:owner/name}\n"
        f"tokenizer: {{name: huggingface, path: hub:owner/other@{COMMIT}}}\n"
        "loss: {name: distillation, teacher: hub:incomplete}\n"
    )
    found = list(iter_hub_models(compose_recipe(str(file))))
    assert found == [HubModel("owner/name", "main"), HubModel("owner/other", COMMIT)]
