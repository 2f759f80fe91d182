"""Compares two recipes as data: what was added, removed, changed, or replaced by another component."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from titanrun.config.problems import DataPath

Kind = Literal["added", "removed", "changed", "replaced"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. Where a component is replaced, `path` ends in its `name` and the keys that only one side has are listed."""

    path: DataPath
    kind: Kind
    left: object = None
    right: object = None
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


def compare(left: object, right: object) -> list[Change]:
    """The changes that lead from `left` to `right`, both plain data, in the order of `right`.

    Values compare with their type: 0.0003 equals 3e-4 and 1 equals 1.0, but 1 is neither "1" nor true. A bare string equals the
    mapping that holds it as its `name`. The order of a list counts; its items are aligned by component name or value, and the
    path of a removed item is its index on the left, of any other on the right.
    """
    return list(changes(left, right, ()))


def changes(left: object, right: object, path: DataPath) -> Iterator[Change]:
    """The changes at and below `path`."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        yield from mapping_changes(left, right, path)
    elif isinstance(left, Mapping) and isinstance(right, str) and component_name(left) is not None:
        yield from mapping_changes(left, {"name": right}, path)
    elif isinstance(left, str) and isinstance(right, Mapping) and component_name(right) is not None:
        yield from mapping_changes({"name": left}, right, path)
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        yield from list_changes(left, right, path)
    elif not same(left, right):
        yield Change(path, "changed", left, right)


def mapping_changes(
    left: Mapping[str, object], right: Mapping[str, object], path: DataPath
) -> Iterator[Change]:
    """The changes of two mappings, key by key; another component is one change and the keys that both have."""
    names = component_name(left), component_name(right)
    removed = [key for key in left if key not in right]
    replaced = bool(path) and None not in names and names[0] != names[1]
    if replaced:
        added = tuple(key for key in right if key not in left)
        yield Change((*path, "name"), "replaced", *names, removed=tuple(removed), added=added)
    else:
        yield from (Change((*path, key), "removed", left[key]) for key in removed)
    for key, value in right.items():
        if key in left and not (replaced and key == "name"):
            yield from changes(left[key], value, (*path, key))
        elif key not in left and not replaced:
            yield Change((*path, key), "added", right=value)


def list_changes(
    left: Sequence[object], right: Sequence[object], path: DataPath
) -> Iterator[Change]:
    """The changes of two lists whose items are aligned by what identifies them."""
    matcher = SequenceMatcher(
        None, [identity(item) for item in left], [identity(item) for item in right], autojunk=False
    )
    for _, start_left, end_left, start_right, end_right in matcher.get_opcodes():
        both = min(end_left - start_left, end_right - start_right)
        for offset in range(both):
            yield from changes(
                left[start_left + offset],
                right[start_right + offset],
                (*path, start_right + offset),
            )
        for index in range(start_left + both, end_left):
            yield Change((*path, index), "removed", left[index])
        for index in range(start_right + both, end_right):
            yield Change((*path, index), "added", right=right[index])


def component_name(value: object) -> str | None:
    """The name of a component, written as a mapping or as a bare string."""
    name = value.get("name") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None


def identity(value: object) -> tuple[str, object]:
    """What a list item is recognised by: its component name, its value, or for other mappings and lists its kind alone."""
    name = component_name(value)
    if name is not None:
        return "component", name
    if isinstance(value, Mapping):
        return "mapping", None
    return ("list", None) if isinstance(value, list | tuple) else (kind(value), value)


def same(left: object, right: object) -> bool:
    """Whether two scalars are the same value of the same kind; nan equals nan."""
    if kind(left) != kind(right):
        return False
    return left == right or all(
        isinstance(value, float) and math.isnan(value) for value in (left, right)
    )


def kind(value: object) -> str:
    """The kinds that never equal one another; whole and other numbers are one kind."""
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__
