import json
from pathlib import Path

import jsonschema
import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.tree import to_plain_data
from titanrun.recipe.resolving.resolve import resolve_recipe

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SCHEMA = json.loads((ROOT / "schemas" / "recipe.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_shipped_recipes_and_their_resolved_forms_agree_with_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert [
        error.message for error in VALIDATOR.iter_errors(to_plain_data(read_source(str(path))))
    ] == []
    saved = tmp_path / "resolved.yaml"
    saved.write_text(resolve_recipe(str(path), environment={}).text, encoding="utf-8")
    assert [
        error.message for error in VALIDATOR.iter_errors(to_plain_data(read_source(str(saved))))
    ] == []


@pytest.mark.parametrize(
    "name",
    ["unknown-key", "unknown-name", "missing-key", "missing-name", "wrong-type", "out-of-range"],
)
def test_an_editor_sees_the_mistakes_that_validate_sees(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "tests" / "problems" / name
    monkeypatch.chdir(folder)
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe("recipe.yaml", environment={})
    ours = {problem.path[0] for problem in caught.value.problems if problem.path}
    theirs = set()
    for error in VALIDATOR.iter_errors(to_plain_data(read_source("recipe.yaml"))):
        theirs |= (
            {error.absolute_path[0]} if error.absolute_path else set(error.message.split("'")[1::2])
        )
    assert ours <= theirs


def test_a_recipe_that_extends_another_may_leave_out_what_that_one_says() -> None:
    partial = {
        "version": 1,
        "extends": "base.yaml",
        "model": {"n_layers": 2},
        "training": {"steps": 5},
    }
    assert [error.message for error in VALIDATOR.iter_errors(partial)] == []
    del partial["extends"]
    missing = {error.message for error in VALIDATOR.iter_errors(partial)}
    assert missing == {"'name' is a required property", "'dataset' is a required property"}


def test_lists_may_be_added_to() -> None:
    """Row C11 of the defect list."""
    base: dict[str, object] = {"version": 1, "extends": "base.yaml"}
    assert VALIDATOR.is_valid({**base, "converters+": ["lora"]})
    assert VALIDATOR.is_valid({**base, "converters+": {"name": "lora", "rank": 4}})
    assert not VALIDATOR.is_valid({**base, "converters+": ["lroa"]})
    assert not VALIDATOR.is_valid({**base, "seq_len+": [4]})
