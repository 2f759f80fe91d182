import json
from pathlib import Path

import jsonschema
import pytest

from tests.shipped import RUN_RECIPES
from titanrun.config.fields import get_code_kind
from titanrun.config.problems import ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.tree import to_plain_data
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.schemas.all_schemas import format_schema
from titanrun.recipe.schemas.field_schema import collect_places

ROOT = Path(__file__).parents[3]
RECIPES = [path for path in RUN_RECIPES if path.suffix == ".yaml"]
SCHEMA = json.loads((ROOT / "schemas" / "recipe.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_every_default_and_every_example_is_a_value_that_its_field_takes() -> None:
    """An editor offers both; one that validate refuses sends its user in a circle."""
    for section, definition in SCHEMA["$defs"].items():
        for name, field in definition.get("properties", {}).items():
            takes = jsonschema.Draft202012Validator({**field, "$defs": SCHEMA["$defs"]})
            offered = [
                *field.get("examples", []),
                *([field["default"]] if "default" in field else []),
            ]
            assert [value for value in offered if not takes.is_valid(value)] == [], (section, name)


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


def test_references_stand_for_values_of_any_type() -> None:
    """Row C16 of the defect list: `${...}` was flagged in typed fields."""
    base: dict[str, object] = {"version": 1, "extends": "base.yaml"}
    reference = "${training.steps}"
    for typed in (
        {"training": {"steps": reference, "seq_len": reference, "tokens": reference}},
        {"checkpoint": {"enable": reference}},
        {"kind": "${oc.kind}", "optimizer": reference, "plugins": reference},
    ):
        assert VALIDATOR.is_valid({**base, **typed}), typed
    assert not VALIDATOR.is_valid({**base, "training": {"steps": "many"}})
    assert not VALIDATOR.is_valid({**base, "checkpoint": {"enable": "x ${y}"}})
    secret = {"launch": {"name": "slurm"}, "metrics": {"trackers": [{"name": "${x}"}]}}
    assert not VALIDATOR.is_valid({**base, **secret})


def test_every_family_offers_its_own_flavors() -> None:
    llama = SCHEMA["$defs"]["Llama3"]["properties"]["flavor"]["anyOf"][0]["enum"]
    qwen = SCHEMA["$defs"]["Qwen3"]["properties"]["flavor"]["anyOf"][0]["enum"]
    assert {"8B", "405B", "debugmodel", "auto"} <= set(llama)
    assert "0.6B" in qwen and "405B" not in qwen
    # in a resolved recipe the flavor is a label
    mine = {"version": 1, "extends": "a.yaml", "model": {"name": "llama3", "flavor": "mine"}}
    assert VALIDATOR.is_valid(mine)


def test_the_hover_text_says_what_is_known_of_a_field() -> None:
    field = SCHEMA["$defs"]["Training"]["properties"]["local_batch_size"]
    assert field["title"] == "local_batch_size"
    assert field["description"].split("\n\n") == [
        "Sequences per forward pass on each data-parallel rank.",
        "Default: 8 sequences. Range: above 0. Unit: sequences. Numerics: a change moves the loss "
        "curve. A resume refuses a change, unless checkpoint.allow_change names it.",
    ]
    metrics = SCHEMA["$defs"]["Metrics"]["properties"]["log_freq"]["description"]
    assert metrics.endswith("A resume allows a change.")
    folder = SCHEMA["$defs"]["Checkpoint"]["properties"]["folder"]["description"]
    assert folder.endswith("A resume refuses a change.")
    path = SCHEMA["$defs"]["TextDataset"]["properties"]["path"]["description"]
    assert "In evaluation, rl and training a resume refuses a change" in path
    assert "in validation a resume allows a change" in path
    sections = [SCHEMA, *(part for part in SCHEMA["$defs"].values() if "properties" in part)]
    untitled = {
        name
        for section in sections
        for name, field in section["properties"].items()
        if field.get("title") != name and not field.get("deprecated")
    }
    assert untitled == set()
    assert "$id" not in SCHEMA


def test_fields_whose_value_is_code_that_runs_are_marked() -> None:
    marked = {
        f"{section}.{name}": field["x-runs"]
        for section, definition in SCHEMA["$defs"].items()
        for name, field in definition.get("properties", {}).items()
        if "x-runs" in field
    }
    assert (
        marked.items()
        >= {
            "Program.command": "command",
            "Command.command": "command",
        }.items()
    )
    assert set(marked.values()) == {"command", "folder", "shell"}
    # whatever asks for consent is marked: see recipe/consent
    asks = {
        f"{config.__name__.removesuffix('Config')}.{name}"
        for config in collect_places(Recipe)
        for name, field in config.model_fields.items()
        if get_code_kind(field)
    }
    assert set(marked) == asks


def test_a_published_schema_names_its_address() -> None:
    text = format_schema("recipe", base_url="https://docs.example/schemas/0.1")
    published = json.loads(text)
    assert published.pop("$id") == "https://docs.example/schemas/0.1/recipe.schema.json"
    assert published == SCHEMA
