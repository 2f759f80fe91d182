"""Where migrated values stand in a recipe, what the recipe's configs say of that place, and the plain data they make."""

import re
from collections.abc import Iterable
from typing import Any

from titanrun.config.fields import setting_of
from titanrun.config.problems import DataPath
from titanrun.config.shape import annotation_at, chosen, field_at, is_slot, value_at
from titanrun.config.tree import path_text
from titanrun.config.wording import singular
from titanrun.recipe.expected import Expected
from titanrun.recipe.recipe import Recipe

Target = tuple[str, ...]
STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
# what a recipe cannot do without: kept also where this version does not have it
REQUIRED: tuple[DataPath, ...] = (("model",), ("training", "dataset"))


def target_steps(text: str) -> Target:
    """`converters[float8_linear].emulate` as ("converters", "[float8_linear]", "emulate")."""
    return tuple(STEP.findall(text))


def data_of(values: Iterable[tuple[Target, Any]]) -> dict[str, Any]:
    """Plain data of a recipe with these values; components of a list in the order in which they come."""
    nested: dict[str, Any] = {}
    for target, value in values:
        holder = nested
        for step in target[:-1]:
            holder = holder.setdefault(step, {})
        holder[target[-1]] = value
    return {"version": 1, **listed(nested)}


def listed(nested: Any) -> Any:
    """Mappings by component name as lists of components."""
    if not isinstance(nested, dict):
        return nested
    if nested and all(key.startswith("[") for key in nested):
        return [{"name": key[1:-1], **listed(inside)} for key, inside in nested.items()]
    return {key: listed(inside) for key, inside in nested.items()}


def path_in(data: Any, target: Target) -> DataPath:
    """The data path of a target: components of a list by their index."""
    path: DataPath = ()
    for step in target:
        if not step.startswith("["):
            path = (*path, step)
            continue
        items = value_at(data, path)
        # a component without options may be written as its bare name
        names = (
            [item if isinstance(item, str) else item["name"] for item in items]
            if isinstance(items, list)
            else []
        )
        path = (*path, names.index(step[1:-1]) if step[1:-1] in names else 0)
    return path


def not_available(data: Any, target: Target, value: Any, extension: str) -> str:
    """What this version does not have of a place and its value, in words; empty where it has all."""
    path = path_in(data, target)
    for length in range(1, len(path) + 1):
        annotation = annotation_at(Recipe, data, path[:length])
        if annotation is None:
            return extension or path_text(path)
        if is_slot(annotation):
            name = value_at(data, (*path[:length], "name"))
            if chosen(annotation, value_at(data, path[:length])) is None:
                return f"{singular(annotation.slot)} {name}"
    field = field_at(Recipe, data, path)
    setting = setting_of(field) if field is not None else None
    if setting is not None and setting.not_built and not is_default(data, target, value):
        return setting.not_built
    return ""


def is_default(data: Any, target: Target, value: Any) -> bool:
    """Whether the recipe has `value` in this place where nothing is written there."""
    path = path_in(data, target)
    if path[-1] == "name" and is_slot(annotation_at(Recipe, data, path[:-1])):
        return is_default_component(data, path[:-1], value)
    try:
        default: object = Expected(data).default_of(path)
    except LookupError:
        return False
    return value is default or (
        value == default and not isinstance(value, bool) and not isinstance(default, bool)
    )


def is_default_component(data: Any, path: DataPath, name: Any) -> bool:
    """Whether a slot holds the component `name` where nothing is written."""
    if isinstance(path[-1], int):
        return False
    try:
        default = Expected(data).default_of(path)
    except LookupError:
        return False
    return isinstance(default, dict) and default.get("name") == name


def is_required(target: Target) -> bool:
    """Whether a recipe needs the component that a target is part of."""
    return any(target[: len(path)] == path for path in REQUIRED)
