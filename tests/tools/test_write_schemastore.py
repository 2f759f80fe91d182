"""The draft-7 form of the recipe schema says what the published one says, of all recipes here."""

import fnmatch
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML, YAMLError

from titanrun.recipe.schemas.all_schemas import SCHEMAS
from tools.write_schemastore import (
    NAME,
    PATTERNS,
    ROOT,
    build_draft_7_schema,
    convert_to_draft_7,
    write_submission,
)

ADDRESS = "https://docs.example/schemas/0.1"


def read(path: Path) -> Any:
    """Read a recipe; None if it cannot be read."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else YAML(typ="safe").load(text)
    except (YAMLError, ValueError):
        return None


def test_both_forms_judge_recipes_alike() -> None:
    newest = jsonschema.Draft202012Validator(SCHEMAS["recipe"]())
    assert '"x-' not in json.dumps(build_draft_7_schema())
    older = jsonschema.Draft7Validator(build_draft_7_schema())
    older.check_schema(older.schema)
    shipped = sorted((ROOT / "recipes").glob("llama3_*_debug.*ml"))
    # a quarter: each takes some hundredths of a second
    recipes = [*shipped, *sorted((ROOT / "tests" / "problems").glob("*/recipe.yaml"))[::4]]
    read_recipes = [recipe for path in recipes if (recipe := read(path)) is not None]
    verdicts = [newest.is_valid(recipe) for recipe in read_recipes]
    assert [older.is_valid(recipe) for recipe in read_recipes] == verdicts
    assert verdicts.count(False) > 5
    assert all(verdicts[: len(shipped)])


def test_conditions_beside_a_reference_still_count() -> None:
    schema = {
        "$defs": {"size": {"type": "object"}},
        "$ref": "#/$defs/size",
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
    }
    older = jsonschema.Draft7Validator(convert_to_draft_7(schema))
    assert [older.is_valid(value) for value in ({}, {"a": 1}, 1)] == [True, False, False]


def test_the_submission_has_samples_that_pass_and_fail(tmp_path: Path) -> None:
    write_submission(ADDRESS, tmp_path)
    schema = json.loads((tmp_path / "src/schemas/json" / f"{NAME}.json").read_text())
    entry = json.loads((tmp_path / "catalog_entry.json").read_text())
    assert schema["$id"] == entry["url"] == f"{ADDRESS}/recipe.schema.json"
    validator = jsonschema.Draft7Validator(schema)
    for kind, expected in (("test", True), ("negative_test", False)):
        samples = sorted((tmp_path / "src" / kind / NAME).iterdir())
        assert len(samples) >= 3
        assert [path.name for path in samples if validator.is_valid(read(path)) != expected] == []


@pytest.mark.parametrize(
    ("file", "is_ours"),
    [
        ("mine.titanrun.yaml", True),
        ("mine.titanrun.toml", True),
        ("home/.titanrun/recipes/mine.yaml", True),
        ("mine.yaml", False),
        ("recipes/mine.yaml", False),
        ("docker-compose.yml", False),
    ],
)
def test_the_entry_claims_no_file_of_others(file: str, is_ours: bool) -> None:
    assert any(fnmatch.fnmatch(file, pattern) for pattern in PATTERNS) is is_ours
