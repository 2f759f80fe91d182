"""What several places of a recipe contradict each other about: shown where the user can change it, the other places beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from titanrun.config.problems import DataPath, Origin, Related
from titanrun.config.render import shorten
from titanrun.config.tree import Node, find, nearest, path_text, places_of_use

CONFLICT = "conflict"


def conflict(message: str, *fields: str, help: str) -> PydanticCustomError:
    """What a config's validator raises where its fields contradict each other; `fields` are those, the one to change first in front."""
    return PydanticCustomError(
        CONFLICT, "{message}", {"message": message, "fields": fields, "help": help}
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a problem about several paths is shown: at one of them, with the others as related places."""

    path: DataPath
    origin: Origin
    related: tuple[Related, ...]


def place_together(tree: Node, paths: Sequence[DataPath]) -> Placed:
    """What the user wrote last is shown, the other places that were written are related."""
    places = [(path, origin_of(tree, path)) for path in paths]
    shown_path, shown = min(places, key=lambda place: distance_from_user(place[1]))
    others = [
        (path, origin)
        for path, origin in places
        if path != shown_path and origin not in (None, shown)
    ]
    related = tuple(Related(origin, value_text(tree, path), path) for path, origin in others)
    return Placed(
        shown_path, shown or nearest_key(tree, shown_path), (*uses(tree, shown_path), *related)
    )


def uses(tree: Node, path: DataPath) -> tuple[Related, ...]:
    """Where the value at `path` is used or comes from, as related places."""
    words = {"interpolation": f"{path_text(path)} comes from here"}
    used = f"used here as {path_text(path)}"
    return tuple(
        Related(origin, words.get(via, used), path) for origin, via in places_of_use(tree, path)
    )


def value_text(tree: Node, path: DataPath) -> str:
    """`training.steps is 10`."""
    node = find(tree, path)
    plain_value = node is not None and not isinstance(node.value, dict | list)
    return (
        f"{path_text(path)} is {shorten(node.value)}"
        if node is not None and plain_value
        else path_text(path)
    )


def origin_of(tree: Node, path: DataPath) -> Origin | None:
    """Where a value was written, or None where it is a default."""
    node = find(tree, path)
    return None if node is None else node.origin


def nearest_key(tree: Node, path: DataPath) -> Origin:
    """The place of the section that a default belongs to."""
    node, _ = nearest(tree, path)
    return node.key or node.origin


def distance_from_user(origin: Origin | None) -> int:
    """0 for an override, 1 for the given file, 2 for a file it extends, 3 for a default."""
    if origin is None:
        return 3
    if origin.source.kind == "override":
        return 0
    return 1 if origin.source.included_from is None else 2
