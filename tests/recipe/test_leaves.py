"""No setting validates and does nothing: leaves.yaml names the test that fails when a setting is
ignored, or says not-built."""

import ast
import re
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, get_origin

import pytest
from pydantic.fields import FieldInfo

from titanrun.config.describe_field import get_default_data, get_example_value
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.serialize import to_yaml
from titanrun.config.type_introspection import find_item_type, get_literal_values, unwrap_annotation
from titanrun.recipe.resolving.resolve import resolve_recipe

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS.parent / "tools"))

from recipe_leaves import NOT_BUILT, Leaf, leaves, table  # noqa: E402

BASE: dict[str, Any] = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny", "seq_len": 64},
}


def test_every_setting_is_in_the_table() -> None:
    missing = sorted(set(leaves()) - set(table()))
    assert missing == [], (
        "for each, write into leaves.yaml which test fails when the setting is ignored, or "
        "not-built"
    )
    stale = sorted(set(table()) - set(leaves()))
    assert stale == [], "these are no settings any more: remove them from leaves.yaml"


def test_the_table_and_the_schema_agree_on_what_is_not_built() -> None:
    declared = {name for name, leaf in leaves().items() if leaf.capability is not None}
    listed = {name for name, test in table().items() if test == NOT_BUILT}
    assert sorted(listed - declared) == [], (
        "these are built: name the test that fails when they are ignored"
    )
    assert sorted(declared - listed) == [], (
        "these are declared not_built: write not-built into leaves.yaml"
    )


def test_every_test_in_the_table_exists() -> None:
    named = {test for test in table().values() if test != NOT_BUILT}
    assert [test for test in sorted(named) if not exists(test)] == []


def exists(test: str) -> bool:
    """Whether `folder/file.py::function[case]` is there; a case is an id in the file, or a folder
    beside it."""
    found = re.fullmatch(r"([a-z0-9_/]+\.py)::(test_\w+)(?:\[(.+)\])?", test)
    if found is None or not (TESTS / found[1]).is_file():
        return False
    text, functions = source_of(found[1])
    case = found[3]
    return found[2] in functions and (
        case is None or f'"{case}"' in text or (TESTS / found[1]).with_name(case).is_dir()
    )


@cache
def source_of(file: str) -> tuple[str, frozenset[str]]:
    """The text of a test file, and the names of its tests."""
    text = (TESTS / file).read_text(encoding="utf-8")
    return text, frozenset(
        node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
    )


def not_built_by_component() -> dict[str, list[Leaf]]:
    """What is not built, the settings of one component together, since two choices of a slot
    exclude each other."""
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves().values():
        if leaf.capability is not None:
            found.setdefault(leaf.name.partition(".")[0] if leaf.component else "", []).append(leaf)
    return found


@pytest.mark.parametrize("component", not_built_by_component())
def test_what_is_not_built_takes_its_default_only(component: str, tmp_path: Path) -> None:
    wished = not_built_by_component()[component]
    (tmp_path / "recipe.yaml").write_text(to_yaml(asking_for(wished)), encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={})
    told = {
        named_keys(problem): problem.message
        for problem in caught.value.problems
        if problem.code == NOT_BUILT
    }
    for leaf in wished:
        assert str(leaf.capability) in told.get(leaf.keys, ""), (
            f"{leaf.name} takes {another_value(leaf.field)!r}"
        )


def asking_for(wished: list[Leaf]) -> dict[str, Any]:
    """A recipe with another value than the default for each of the settings, which are of one
    component or of none."""
    recipe: dict[str, Any] = deepcopy(BASE)
    choice, slot = wished[0].component, wished[0].slot
    if choice is None or slot is None:
        for leaf in wished:
            put(recipe, leaf.keys, another_value(leaf.field))
        return recipe
    component = {
        key: get_example_value(field)
        for key, field in choice.model_fields.items()
        if field.is_required()
    }
    component |= recipe.get(slot.name, {}) | {"name": choice.model_fields["name"].default}
    for leaf in wished:
        put(component, leaf.keys[len(slot.keys) :], another_value(leaf.field))
    put(recipe, slot.keys, [component] if find_item_type(slot.field.annotation) else component)
    return recipe


def put(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        data = data.setdefault(key, {})
    data[keys[-1]] = value


def named_keys(problem: Problem) -> tuple[str, ...]:
    """The path of a problem without the indexes of lists."""
    return tuple(step for step in problem.path if isinstance(step, str))


def another_value(field: FieldInfo) -> Any:
    """A value of the field's type other than its default."""
    default, inner, item = (
        get_default_data(field),
        unwrap_annotation(field.annotation),
        find_item_type(field.annotation),
    )
    if item is not None:
        return (
            [["x"]]
            if get_origin(item) is tuple
            else [next(iter(get_literal_values(item)), "x")]
            if default == []
            else []
        )
    if get_literal_values(field.annotation):
        return next(option for option in get_literal_values(field.annotation) if option != default)
    if inner is bool:
        return not default
    if inner in (int, float):
        return inner(1) if default is None or default == 0 else default + 1
    return "another"
