"""Conflicts between values of a recipe, shown at the value that the user can change."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from titanrun.config.diagnostics import format_short_value
from titanrun.config.problems import DataPath, Origin, RelatedLocation
from titanrun.config.tree import Node, find_node, format_path, get_nearest_node, iter_use_origins

CONFLICT = "conflict"


def conflict_error(message: str, *fields: str, hint: str) -> PydanticCustomError:
    """Build the error of a config validator whose fields contradict each other.

    `fields` are these fields, the one to change first.
    """
    return PydanticCustomError(
        CONFLICT, "{message}", {"message": message, "fields": fields, "help": hint}
    )


@dataclass(frozen=True, slots=True)
class ProblemLocation:
    """Location of a problem about several paths: one of them, the others as related locations."""

    path: DataPath
    origin: Origin
    related: tuple[RelatedLocation, ...]


def order_locations(tree: Node, paths: Sequence[DataPath]) -> ProblemLocation:
    """Choose the value that the user wrote last as location, other written values as related."""
    places = [(path, find_value_origin(tree, path)) for path in paths]
    shown_path, shown = min(places, key=lambda place: get_distance_from_user(place[1]))
    others = [
        (path, origin)
        for path, origin in places
        if path != shown_path and origin not in (None, shown)
    ]
    related = tuple(
        RelatedLocation(origin, format_path_value(tree, path), path) for path, origin in others
    )
    return ProblemLocation(
        shown_path,
        shown or get_nearest_key_origin(tree, shown_path),
        (*get_related_uses(tree, shown_path), *related),
    )


def get_related_uses(tree: Node, path: DataPath) -> tuple[RelatedLocation, ...]:
    """Return the locations through which the value at `path` is used or obtained."""
    words = {"interpolation": f"{format_path(path)} comes from here"}
    used = f"used here as {format_path(path)}"
    return tuple(
        RelatedLocation(origin, words.get(via, used), path)
        for origin, via in iter_use_origins(tree, path)
    )


def format_path_value(tree: Node, path: DataPath) -> str:
    """Return a path with its value: `training.steps is 10`."""
    node = find_node(tree, path)
    plain_value = node is not None and not isinstance(node.value, dict | list)
    return (
        f"{format_path(path)} is {format_short_value(node.value)}"
        if node is not None and plain_value
        else format_path(path)
    )


def find_value_origin(tree: Node, path: DataPath) -> Origin | None:
    """Return the origin of a written value, or None for a default."""
    node = find_node(tree, path)
    return None if node is None else node.origin


def get_nearest_key_origin(tree: Node, path: DataPath) -> Origin:
    """Return the origin of the section that a default belongs to."""
    node, _ = get_nearest_node(tree, path)
    return node.key or node.origin


def get_distance_from_user(origin: Origin | None) -> int:
    """Return 0 for an override, 1 for the given file, 2 for an extended file, 3 for a default."""
    if origin is None:
        return 3
    if origin.source.kind == "override":
        return 0
    return 1 if origin.source.included_from is None else 2
