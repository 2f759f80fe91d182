"""The shortest recipe that resolves to the same run: what equals a default or a decision is left out, and each step is checked."""

from typing import Any

from pydantic import ValidationError

from titanrun.config.base import dump
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.shape import value_at
from titanrun.recipe.decide import decide
from titanrun.recipe.plugins import recipe_class
from titanrun.recipe.recipe import Recipe

# the name would follow the file's, and that is not known here
ALWAYS_WRITTEN = ("version", "name")
Data = dict[str, Any]


def minimal(run: Recipe) -> Data:
    """Plain data of the shortest recipe, found by leaving out one value after the other, sections first."""
    goal = dump(run)
    data = goal
    for key in goal:
        if key not in ALWAYS_WRITTEN:
            data = shortened(data, (key,), goal)
    return data


def shortened(data: Data, path: DataPath, goal: Data) -> Data:
    """`data` with as little at `path` as decides to the same `goal`."""
    # an item of a list is shortened, never left out: the next one would take its place
    if isinstance(path[-1], str) and decides_to(shorter := without(data, path), goal):
        return shorter
    value = value_at(data, path)
    steps: list[str | int] = (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )
    for step in steps:
        data = shortened(data, (*path, step), goal)
    value = value_at(data, path)
    if isinstance(value, dict) and list(value) == ["name"]:
        bare = replaced(data, path, value["name"])
        return bare if decides_to(bare, goal) else data
    return data


def decides_to(data: Data, goal: Data) -> bool:
    """Whether a recipe is valid and becomes the run `goal`."""
    try:
        decided = decide(recipe_class().model_validate(data), file="")
    except (ValidationError, ProblemsFound):
        return False
    return decided == goal and zeros(decided) == zeros(goal)


def zeros(data: object) -> list[str]:
    """The numbers of plain data that are 0, in the order of their paths: 0.0 equals -0.0, and is written otherwise."""
    if isinstance(data, dict):
        return [zero for key in sorted(data) for zero in zeros(data[key])]
    if isinstance(data, list):
        return [zero for item in data for zero in zeros(item)]
    return [str(data)] if isinstance(data, float) and data == 0 else []


def without(data: Data, path: DataPath) -> Data:
    """A copy of `data` less the key at the end of `path`."""
    holder = {key: value for key, value in value_at(data, path[:-1]).items() if key != path[-1]}
    return replaced(data, path[:-1], holder) if path[:-1] else holder


def replaced(data: Any, path: DataPath, value: object) -> Any:
    """A copy of `data` with `value` at `path`."""
    step = path[0]
    inside = value if len(path) == 1 else replaced(data[step], path[1:], value)
    if isinstance(data, list):
        return [inside if index == step else item for index, item in enumerate(data)]
    return {key: inside if key == step else item for key, item in data.items()}
