"""Values of a foreign configuration with their locations in the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from titanrun.config.problems import DataPath, Origin
from titanrun.config.tree import Node
from titanrun.recipe.migrate.toml_comments import NO_COMMENTS, KeyComments


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """One value of the file.

    `path` is its path in the release that the table describes, `written_path` the path as written.
    `how` and `refused` are added by a reader: what changes in meaning, and why the release has no
    such value. `original` is the content of the file if `value` was computed from it.
    """

    path: str
    written_path: str
    value: Any
    origin: Origin
    comments: KeyComments = NO_COMMENTS
    how: str = ""
    refused: str = ""
    original: Any = None


@dataclass(frozen=True, slots=True)
class SourceEntries:
    """The entries of a file in its order, with the comments of its tables.

    Comments of the whole file are included. `is_complete` distinguishes a dump, which has every
    key, from a file that a person wrote.
    """

    entries: tuple[SourceEntry, ...]
    table_comments: dict[str, KeyComments]
    is_complete: bool = False


def iter_leaf_nodes(node: Node, path: DataPath = ()) -> Iterator[tuple[DataPath, Node]]:
    """Yield every node that is not a table."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from iter_leaf_nodes(child, (*path, key))
    else:
        yield path, node
