"""Shortening of recipes: drop each value that equals its default or resolved value.

Each step is checked to resolve to the same run.
"""

from typing import Any

from pydantic import ValidationError

from titanrun.config.base import dump_config
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.type_introspection import find_value
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve_auto import resolve_auto_fields

# the name defaults to that of the file, which is not known here
ALWAYS_WRITTEN = ("version", "name")
Data = dict[str, Any]


def minimize_recipe(run: Recipe) -> Data:
    """Return the shortest recipe for a run, removing values one by one, sections first."""
    goal = dump_config(run)
    data = goal
    for key in goal:
        if key not in ALWAYS_WRITTEN:
            data = shorten_at_path(data, (key,), goal)
    return data


def shorten_at_path(data: Data, path: DataPath, goal: Data) -> Data:
    """Return `data` with as little as possible at `path` that still resolves to `goal`."""
    # an item of a list is shortened, never removed: the next one would take its place
    if isinstance(path[-1], str) and resolves_to(shorter := remove_key(data, path), goal):
        return shorter
    value = find_value(data, path)
    steps: list[str | int] = (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )
    for step in steps:
        data = shorten_at_path(data, (*path, step), goal)
    value = find_value(data, path)
    if isinstance(value, dict) and list(value) == ["name"]:
        bare = replace_value(data, path, value["name"])
        return bare if resolves_to(bare, goal) else data
    return data


def resolves_to(data: Data, goal: Data) -> bool:
    """Return whether a recipe is valid and resolves to the run `goal`."""
    try:
        decided = resolve_auto_fields(get_recipe_class().model_validate(data), file="")
    except (ValidationError, ProblemsFound):
        return False
    return decided == goal and collect_zeros(decided) == collect_zeros(goal)


def collect_zeros(data: object) -> list[str]:
    """Return the numbers of plain data that are 0, in the order of their paths.

    0.0 equals -0.0 but is written differently.
    """
    if isinstance(data, dict):
        return [zero for key in sorted(data) for zero in collect_zeros(data[key])]
    if isinstance(data, list):
        return [zero for item in data for zero in collect_zeros(item)]
    return [str(data)] if isinstance(data, float) and data == 0 else []


def remove_key(data: Data, path: DataPath) -> Data:
    """Return a copy of `data` without the key at the end of `path`."""
    holder = {key: value for key, value in find_value(data, path[:-1]).items() if key != path[-1]}
    return replace_value(data, path[:-1], holder) if path[:-1] else holder


def replace_value(data: Any, path: DataPath, value: object) -> Any:
    """Return a copy of `data` with `value` at `path`."""
    step = path[0]
    inside = value if len(path) == 1 else replace_value(data[step], path[1:], value)
    if isinstance(data, list):
        return [inside if index == step else item for index, item in enumerate(data)]
    return {key: inside if key == step else item for key, item in data.items()}
