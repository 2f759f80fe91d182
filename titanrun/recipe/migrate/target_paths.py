"""Targets of migrated values in a recipe, and what the recipe's schema has there."""

import re
from collections.abc import Iterable
from typing import Any

from titanrun.config.error_messages import singularize_slot
from titanrun.config.fields import find_field_metadata
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import (
    find_annotation,
    find_choice_class,
    find_field_info,
    find_value,
    is_slot,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.schema_queries import SchemaQueries

TargetPath = tuple[str, ...]
STEP_PATTERN = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
# required in a recipe: kept even if this version does not support it
REQUIRED_TARGETS: tuple[DataPath, ...] = (("model",), ("training", "dataset"))


def parse_target(text: str) -> TargetPath:
    """Split `converters[a].emulate` into ("converters", "[a]", "emulate")."""
    return tuple(STEP_PATTERN.findall(text))


def build_recipe_data(values: Iterable[tuple[TargetPath, Any]]) -> dict[str, Any]:
    """Return plain data of a recipe with these values.

    Components of a list keep the order of the values.
    """
    nested: dict[str, Any] = {}
    for target, value in values:
        holder = nested
        for step in target[:-1]:
            holder = holder.setdefault(step, {})
        holder[target[-1]] = value
    return {"version": 1, **components_to_list(nested)}


def components_to_list(nested: Any) -> Any:
    """Return mappings by component name as lists of components."""
    if not isinstance(nested, dict):
        return nested
    if nested and all(key.startswith("[") for key in nested):
        return [{"name": key[1:-1], **components_to_list(inside)} for key, inside in nested.items()]
    return {key: components_to_list(inside) for key, inside in nested.items()}


def get_data_path(data: Any, target: TargetPath) -> DataPath:
    """Return the data path of a target: components of a list by their index."""
    path: DataPath = ()
    for step in target:
        if not step.startswith("["):
            path = (*path, step)
            continue
        items = find_value(data, path)
        # a component without options may be written as its bare name
        names = (
            [item if isinstance(item, str) else item["name"] for item in items]
            if isinstance(items, list)
            else []
        )
        path = (*path, names.index(step[1:-1]) if step[1:-1] in names else 0)
    return path


def find_missing_feature(data: Any, target: TargetPath, value: Any, extension: str) -> str:
    """Return what this version lacks of a target and its value, as text.

    Return an empty text if it lacks nothing.
    """
    path = get_data_path(data, target)
    for length in range(1, len(path) + 1):
        annotation = find_annotation(Recipe, data, path[:length])
        if annotation is None:
            return extension or format_path(path)
        if is_slot(annotation):
            name = find_value(data, (*path[:length], "name"))
            if find_choice_class(annotation, find_value(data, path[:length])) is None:
                return f"{singularize_slot(annotation.slot)} {name}"
    field = find_field_info(Recipe, data, path)
    setting = find_field_metadata(field) if field is not None else None
    if setting is not None and setting.not_built and not is_recipe_default(data, target, value):
        return setting.not_built
    return ""


def is_recipe_default(data: Any, target: TargetPath, value: Any) -> bool:
    """Return whether `value` is the default of the target."""
    path = get_data_path(data, target)
    if path[-1] == "name" and is_slot(find_annotation(Recipe, data, path[:-1])):
        return is_default_component(data, path[:-1], value)
    try:
        default: object = SchemaQueries(data).get_default(path)
    except LookupError:
        return False
    return value is default or (
        value == default and not isinstance(value, bool) and not isinstance(default, bool)
    )


def is_default_component(data: Any, path: DataPath, name: Any) -> bool:
    """Return whether a slot holds the component `name` by default."""
    if isinstance(path[-1], int):
        return False
    try:
        default = SchemaQueries(data).get_default(path)
    except LookupError:
        return False
    return isinstance(default, dict) and default.get("name") == name


def is_required_target(target: TargetPath) -> bool:
    """Return whether a target is part of a component that a recipe requires."""
    return any(target[: len(path)] == path for path in REQUIRED_TARGETS)
