"""Items of a list that are a component where a mapping with that component belongs.

A source of a mixture holds `dataset: {name: ...}` beside its weight. Someone who writes the keys of
the dataset directly gets one problem instead of one a key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from titanrun.config.base import Config
from titanrun.config.problems import DataPath, Problem, RelatedLocation
from titanrun.config.redaction import is_secret_key
from titanrun.config.registry import load_choices
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import Node, find_node, format_path
from titanrun.config.type_introspection import (
    find_annotation,
    find_value,
    is_slot,
    unwrap_annotation,
)

MAX_EXAMPLE = 90
"""Longest item that a hint writes out."""


@dataclass(frozen=True, slots=True)
class UnwrappedComponent:
    """An item of a list with the keys of a component that belong below its key `field`."""

    path: DataPath
    field: str
    keys: tuple[str, ...]


def merge_unwrapped_components(
    model: type[Config], root: Node, data: Any, problems: Sequence[Problem]
) -> list[Problem]:
    """Return the problems with one for all items of a list that lack the key of a component."""
    found = [
        item
        for problem in problems
        if problem.code == "missing-key"
        and (item := find_unwrapped_component(model, data, problem.path))
    ]
    explained = {(*item.path, key) for item in found for key in item.keys}
    leaders = {item.path[:-1]: item for item in reversed(found)}
    lacking = {(*item.path, item.field): item for item in found}
    merged = []
    for problem in problems:
        item = lacking.get(problem.path)
        if problem.path in explained or (item and leaders[item.path[:-1]] is not item):
            continue
        merged.append(describe_items(problem, item, found, root, data) if item else problem)
    return [add_wrapper_hint(model, data, problem) for problem in merged]


def find_unwrapped_component(
    model: type[Config], data: Any, missing: DataPath
) -> UnwrappedComponent | None:
    """Return the item that lacks the key at `missing` and has keys of the component itself."""
    *place, field = missing
    path = tuple(place)
    if not path or not isinstance(path[-1], int):
        return None
    slot = find_annotation(model, data, missing)
    written = find_value(data, path)
    if not is_slot(slot) or not isinstance(written, dict):
        return None
    known = find_annotation(model, data, path).model_fields
    inner = {name for choice in load_choices(slot).values() for name in choice.model_fields}
    keys = tuple(key for key in written if key not in known and key in inner)
    return UnwrappedComponent(path, str(field), keys) if keys else None


def describe_items(
    problem: Problem,
    item: UnwrappedComponent,
    items: Iterable[UnwrappedComponent],
    root: Node,
    data: Any,
) -> Problem:
    """Return the problem of the first item of a list, with the other ones beside it."""
    others = [
        RelatedLocation(node.origin, f"{format_path(other.path)} lacks it too", other.path)
        for other in items
        if other.path != item.path
        and other.path[:-1] == item.path[:-1]
        and (node := find_node(root, other.path)) is not None
    ]
    hint = format_wrapped_item(find_value(data, item.path), item)
    return replace(problem, hint=hint, related=(*problem.related, *others))


def format_wrapped_item(written: dict[str, Any], item: UnwrappedComponent) -> str:
    """Return the hint with the item as it must be written, or with its keys if that is long."""
    inner = {key: written[key] for key in item.keys}
    if "name" not in inner:
        inner = {"name": "NAME", **inner}
    beside = {key: value for key, value in written.items() if key not in item.keys}
    example = to_flow_yaml({item.field: inner, **beside})
    if len(example) <= MAX_EXAMPLE and not any(is_secret_key(key) for key in written):
        return f"write {example}"
    kept = f"; {format_word_list(list(beside), conjunction='and')} stays beside it" * bool(beside)
    return f"indent {format_word_list(list(item.keys), conjunction='and')} below {item.field}{kept}"


def add_wrapper_hint(model: type[Config], data: Any, problem: Problem) -> Problem:
    """Return the problem of a name in the place of an item with the item that holds it."""
    path, name = problem.path, problem.got
    if problem.code != "wrong-type" or not path or not isinstance(path[-1], int):
        return problem
    section = find_annotation(model, data, path)
    if not (isinstance(section, type) and issubclass(section, Config)) or is_slot(section):
        return problem
    slots = [
        (key, slot)
        for key, field in section.model_fields.items()
        if field.is_required() and is_slot(slot := unwrap_annotation(field.annotation))
    ]
    if len(slots) != 1 or not isinstance(name, str) or name not in load_choices(slots[0][1]):
        return problem
    return replace(problem, hint=f"write {to_flow_yaml({slots[0][0]: name})}")
