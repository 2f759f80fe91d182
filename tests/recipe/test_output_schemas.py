"""The schemas of what titanrun writes: well-formed, and true of the problems it reports."""

import json
from pathlib import Path

import jsonschema
import pytest

from titanrun.config.render import render
from titanrun.recipe.levels import examine_file
from titanrun.recipe.schemas import SCHEMAS

CASES = sorted(path for path in (Path(__file__).parents[1] / "problems").glob("*/recipe.*"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


def test_every_problem_of_the_golden_cases_agrees_with_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS["problem"]())
    seen, fixed = set(), 0
    for recipe in CASES:
        monkeypatch.chdir(recipe.parent)
        given = recipe.parent / "overrides.txt"
        overrides = given.read_text(encoding="utf-8").splitlines() if given.exists() else []
        for line in render(examine_file(recipe.name, overrides, level="environment", environment={}).problems, format="json").splitlines():
            problem = json.loads(line)
            validator.validate(problem)
            seen.add(problem["code"])
            fixed += problem["fix"] is not None
    assert len(seen) > 12
    assert fixed > 5
    assert not validator.is_valid({**problem, "code": "unknwon"})
    assert not validator.is_valid({**problem, "more": 1})
