"""A recipe as it was read: plain data in which every key and value knows its origin."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound

Scalar: TypeAlias = bool | int | float | str | None
ValueProvenance: TypeAlias = Literal["file", "override", "interpolation"]


@dataclass(slots=True)
class Node:
    """One value. `key` marks the key that leads to it.

    `also` holds the aliases and merges through which it came.
    """

    value: "Scalar | dict[str, Node] | list[Node]"
    origin: Origin
    key: Origin | None = None
    alias_origins: tuple[Origin, ...] = ()
    shadowed_origins: tuple[Origin, ...] = ()
    via: ValueProvenance = "file"


class PartialReadError(ProblemsFound):
    """A text has problems, but the rest of it is usable.

    `root` is its tree, `invalid_origins` the origins of the unreadable values.
    """

    def __init__(
        self, problems: Sequence[Problem], root: Node, invalid_origins: frozenset[Origin]
    ) -> None:
        self.root = root
        self.invalid_origins = invalid_origins
        super().__init__(problems)


def build_read_error(problems: Sequence[Problem], root: Node) -> ProblemsFound:
    """Build the error that a reader raises at the end of a text.

    It is a PartialReadError if every problem belongs to one value, else ProblemsFound.
    """
    nodes = [find_node(root, problem.path) if problem.path else None for problem in problems]
    broken = frozenset(node.origin for node in nodes if node is not None)
    return ProblemsFound(problems) if None in nodes else PartialReadError(problems, root, broken)


def find_invalid_paths(root: Node, invalid_origins: Collection[Origin]) -> set[DataPath]:
    """Return the paths of unreadable values, including those through aliases and references."""
    spread, found, before = set(invalid_origins), set[DataPath](), -1
    while len(found) > before:
        before = len(found)
        for path, node in iter_nodes(root):
            if spread.intersection((node.origin, *node.alias_origins)):
                found.add(path)
                spread.add(node.origin)
    return found


def to_plain_data(node: Node) -> object:
    """Return the data alone: dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: to_plain_data(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [to_plain_data(value) for value in node.value]
    return node.value


def build_tree(data: object, origin: Origin, via: ValueProvenance = "file") -> Node:
    """Return plain data as a tree in which every node has the origin `origin`."""
    if isinstance(data, dict):
        entries = {key: build_tree(child, origin, via) for key, child in data.items()}
        return Node(entries, origin, via=via)
    if isinstance(data, list | tuple):
        return Node([build_tree(item, origin, via) for item in data], origin, via=via)
    assert data is None or isinstance(data, bool | int | float | str)
    return Node(data, origin, via=via)


def find_node(root: Node, path: DataPath) -> Node | None:
    """Return the node at `path`, or None if the path is not written."""
    node: Node | None = root
    for step in path:
        node = None if node is None else find_child(node, step)
    return node


def find_origin(root: Node, path: DataPath) -> Origin | None:
    """Return where the value at `path` is written, or None if it is not."""
    node = find_node(root, path)
    return None if node is None else node.origin


def find_child(node: Node, step: str | int) -> Node | None:
    """Return the child at one key or index, or None."""
    if isinstance(node.value, dict):
        return node.value.get(step) if isinstance(step, str) else None
    if isinstance(node.value, list) and isinstance(step, int):
        return node.value[step] if -len(node.value) <= step < len(node.value) else None
    return None


def remove_paths(node: Node, paths: Collection[DataPath], path: DataPath = ()) -> Node:
    """Return the tree without the values at `paths`. A list that loses an item is removed."""
    if not any(gone[: len(path)] == path for gone in paths):
        return node
    if isinstance(node.value, dict):
        kept = {}
        for key, value in node.value.items():
            inside = (*path, key)
            loses_item = isinstance(value.value, list) and any(
                gone[: len(inside)] == inside for gone in paths
            )
            if inside not in paths and not loses_item:
                kept[key] = remove_paths(value, paths, inside)
        return replace(node, value=kept)
    return node


def replace_text(tree: Node, path: DataPath, text: str) -> Node:
    """Return the tree with another text at a path, which has one."""
    node = find_node(tree, path)
    assert node is not None
    return replace_node(tree, path, replace(node, value=text))


def replace_node(tree: Node, path: DataPath, new: Node) -> Node:
    """Return the tree with another node at a path, which has one."""
    if not path:
        return new
    inner = tree.value
    assert isinstance(inner, dict | list)
    if isinstance(inner, list):
        index = int(path[0])
        changed = replace_node(inner[index], path[1:], new)
        return replace(tree, value=[*inner[:index], changed, *inner[index + 1 :]])
    step = str(path[0])
    return replace(tree, value={**inner, step: replace_node(inner[step], path[1:], new)})


def get_nearest_node(root: Node, path: DataPath) -> tuple[Node, DataPath]:
    """Return the deepest node on the way to `path`, and its own path."""
    for length in range(len(path), -1, -1):
        node = find_node(root, path[:length])
        if node is not None:
            return node, path[:length]
    return root, ()


def iter_use_origins(root: Node, path: DataPath) -> Iterator[tuple[Origin, ValueProvenance]]:
    """Yield the locations through which the value at `path` was obtained.

    These are aliases and merges (via the file) and references (via interpolation).
    """
    for length in range(1, len(path) + 1):
        node = find_node(root, path[:length])
        if node is not None:
            yield from ((place, node.via) for place in node.alias_origins)


def iter_nodes(node: Node, path: DataPath = ()) -> Iterator[tuple[DataPath, Node]]:
    """Yield `node` and every node below it, parents first."""
    yield path, node
    if isinstance(node.value, dict):
        for key, value in node.value.items():
            yield from iter_nodes(value, (*path, key))
    elif isinstance(node.value, list):
        for index, value in enumerate(node.value):
            yield from iter_nodes(value, (*path, index))


def format_path(path: DataPath) -> str:
    """Format a path: `("converters", 0, "lr")` becomes `converters[0].lr`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
