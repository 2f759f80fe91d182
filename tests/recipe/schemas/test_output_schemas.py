"""The schemas of what titanrun writes: well-formed, and true of the problems it reports."""

import json
from pathlib import Path

import jsonschema
import pytest

from titanrun.config.diagnostics import render_problems
from titanrun.recipe.resolving.validation_levels import validate_file
from titanrun.recipe.schemas.all_schemas import SCHEMAS

CASES = sorted(path for path in (Path(__file__).parents[2] / "problems").glob("*/recipe.*"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


def test_every_problem_of_the_golden_cases_agrees_with_its_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS["problem"]())
    seen, fixed = set(), 0
    for recipe in CASES:
        monkeypatch.chdir(recipe.parent)
        given = recipe.parent / "overrides.txt"
        overrides = given.read_text(encoding="utf-8").splitlines() if given.exists() else []
        for line in render_problems(
            validate_file(recipe.name, overrides, level="environment", environment={}).problems,
            output_format="json",
        ).splitlines():
            problem = json.loads(line)
            validator.validate(problem)
            seen.add(problem["code"])
            fixed += problem["fix"] is not None
    assert len(seen) > 12
    assert fixed > 5
    assert not validator.is_valid({**problem, "code": "unknwon"})
    assert not validator.is_valid({**problem, "more": 1})


def test_sweep_files_agree_with_their_schema_as_far_as_it_goes() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS["sweep"]())
    head = {"version": 1, "recipe": "my.yaml"}
    draws = {"optimizer.lr": {"log_uniform": [1e-5, 1e-2]}, "model": {"dim": {"choice": [64, 128]}}}
    for points in (
        {"grid": {"optimizer.lr": [1e-3], "debug": {"seed": [1, 2]}}},
        {
            "zip": {"a.b": [1, "x", None], "c.d": [{"name": "adamw"}] * 3},
            "slots": 2,
            "early_stopping": {"name": "halving", "factor": 2},
        },
        {"list": [{"optimizer.lr": 1e-3, "optimizer": {"name": "sgd"}}]},
        {"random": {"count": 3, "values": draws}},
        {"search": {"count": 3, "values": draws, "sampler": "qmc", "first": [{"a.b": 1}]}},
    ):
        validator.validate({**head, **points})
        assert not validator.is_valid({**head, **points, "slot": 2})
        assert not validator.is_valid({"version": 1, **points})
    for points in (
        {},
        {"grid": {"a.b": 1}},
        {"grid": {}},
        {"random": {"values": draws}},
        {"search": {"values": draws}},
        {"search": {"count": 1, "values": draws, "sampler": "grid"}},
        {"random": {"count": 1, "values": {"a.b": {"gauss": [0, 1]}}}},
    ):
        assert not validator.is_valid({**head, **points})
