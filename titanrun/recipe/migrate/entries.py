"""The values of a foreign configuration, each with its place in the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from titanrun.config.problems import DataPath, Origin
from titanrun.config.tree import Node
from titanrun.recipe.migrate.comments import NONE, Comments


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of the file: its path in the release that the table describes, the path that is written, and where the key stands.

    `how` and `refused` are what a reader adds: what changes in meaning, and why the release has no such value; `original` is what the
    file holds where `value` was counted from it.
    """

    path: str
    written: str
    value: Any
    origin: Origin
    comments: Comments = NONE
    how: str = ""
    refused: str = ""
    original: Any = None


@dataclass(frozen=True, slots=True)
class Written:
    """The entries of a file in its order, with the comments that belong to tables, or to the whole of it.

    `is_complete` tells a dump, which holds every key, from a file that a person wrote.
    """

    entries: tuple[Entry, ...]
    tables: dict[str, Comments]
    is_complete: bool = False


def leaves(node: Node, path: DataPath = ()) -> Iterator[tuple[DataPath, Node]]:
    """Everything that is no table."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from leaves(child, (*path, key))
    else:
        yield path, node
