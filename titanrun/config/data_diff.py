"""Comparison of two recipes as data: added, removed, changed and replaced values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from titanrun.config.problems import DataPath

DataChangeKind = Literal["added", "removed", "changed", "replaced"]


@dataclass(frozen=True, slots=True)
class DataChange:
    """One difference between two recipes.

    If a component is replaced, `path` ends in its `name` and the keys that only one side has are
    listed.
    """

    path: DataPath
    kind: DataChangeKind
    left: object = None
    right: object = None
    removed_keys: tuple[str, ...] = ()
    added_keys: tuple[str, ...] = ()


def diff_data(left: object, right: object) -> list[DataChange]:
    """Return the changes from `left` to `right`, both plain data, in the order of `right`.

    Values compare with their type: 0.0003 equals 3e-4 and 1 equals 1.0, but 1 is neither "1" nor
    true. A bare string equals the mapping that holds it as its `name`. The order of a list counts.
    List items are aligned by component name or value, and the path of a removed item has its index
    on the left, that of any other item its index on the right.
    """
    return list(iter_changes(left, right, ()))


def iter_changes(left: object, right: object, path: DataPath) -> Iterator[DataChange]:
    """Yield the changes at and below `path`."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        yield from iter_mapping_changes(left, right, path)
    elif (
        isinstance(left, Mapping)
        and isinstance(right, str)
        and find_component_name(left) is not None
    ):
        yield from iter_mapping_changes(left, {"name": right}, path)
    elif (
        isinstance(left, str)
        and isinstance(right, Mapping)
        and find_component_name(right) is not None
    ):
        yield from iter_mapping_changes({"name": left}, right, path)
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        yield from iter_list_changes(left, right, path)
    elif not is_same_scalar(left, right):
        yield DataChange(path, "changed", left, right)


def iter_mapping_changes(
    left: Mapping[str, object], right: Mapping[str, object], path: DataPath
) -> Iterator[DataChange]:
    """Yield the changes of two mappings, key by key.

    Another component is one change, followed by the changes of the keys that both have.
    """
    names = find_component_name(left), find_component_name(right)
    removed = [key for key in left if key not in right]
    replaced = bool(path) and None not in names and names[0] != names[1]
    if replaced:
        added = tuple(key for key in right if key not in left)
        yield DataChange(
            (*path, "name"), "replaced", *names, removed_keys=tuple(removed), added_keys=added
        )
    else:
        yield from (DataChange((*path, key), "removed", left[key]) for key in removed)
    for key, value in right.items():
        if key in left and not (replaced and key == "name"):
            yield from iter_changes(left[key], value, (*path, key))
        elif key not in left and not replaced:
            yield DataChange((*path, key), "added", right=value)


def iter_list_changes(
    left: Sequence[object], right: Sequence[object], path: DataPath
) -> Iterator[DataChange]:
    """Yield the changes of two lists whose items are aligned by their identity."""
    matcher = SequenceMatcher(
        None,
        [get_item_identity(item) for item in left],
        [get_item_identity(item) for item in right],
        autojunk=False,
    )
    for _, start_left, end_left, start_right, end_right in matcher.get_opcodes():
        both = min(end_left - start_left, end_right - start_right)
        for offset in range(both):
            yield from iter_changes(
                left[start_left + offset],
                right[start_right + offset],
                (*path, start_right + offset),
            )
        for index in range(start_left + both, end_left):
            yield DataChange((*path, index), "removed", left[index])
        for index in range(start_right + both, end_right):
            yield DataChange((*path, index), "added", right=right[index])


def find_component_name(value: object) -> str | None:
    """Return the name of a component, written as a mapping or as a bare string."""
    name = value.get("name") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None


def get_item_identity(value: object) -> tuple[str, object]:
    """Return the identity of a list item: component name, scalar value, or else its kind."""
    name = find_component_name(value)
    if name is not None:
        return "component", name
    if isinstance(value, Mapping):
        return "mapping", None
    return ("list", None) if isinstance(value, list | tuple) else (get_scalar_kind(value), value)


def is_same_scalar(left: object, right: object) -> bool:
    """Return whether two scalars are the same value of the same kind. NaN equals NaN."""
    if get_scalar_kind(left) != get_scalar_kind(right):
        return False
    return left == right or all(
        isinstance(value, float) and math.isnan(value) for value in (left, right)
    )


def get_scalar_kind(value: object) -> str:
    """Return the kind of a scalar. Values of different kinds are never equal.

    Integers and floats are one kind.
    """
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__
