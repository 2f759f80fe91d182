"""A recipe as it was read: plain data in which every key and every value knows its origin."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound

Scalar: TypeAlias = bool | int | float | str | None
Via: TypeAlias = Literal["file", "override", "interpolation"]


@dataclass(slots=True)
class Node:
    """One value. `key` marks the key that leads to it; `also` the aliases and merges it came through."""

    value: "Scalar | dict[str, Node] | list[Node]"
    origin: Origin
    key: Origin | None = None
    also: tuple[Origin, ...] = ()
    shadowed: tuple[Origin, ...] = ()
    via: Via = "file"


class ReadInPart(ProblemsFound):
    """A text has problems and the rest of it can be used: `root` is its tree, `broken` the origins of the values without meaning."""

    def __init__(self, problems: Sequence[Problem], root: Node, broken: frozenset[Origin]) -> None:
        self.root = root
        self.broken = broken
        super().__init__(problems)


def in_part(problems: Sequence[Problem], root: Node) -> ProblemsFound:
    """What a reader raises at the end of a text: ReadInPart where every problem belongs to one value, else ProblemsFound."""
    nodes = [find(root, problem.path) if problem.path else None for problem in problems]
    broken = frozenset(node.origin for node in nodes if node is not None)
    return ProblemsFound(problems) if None in nodes else ReadInPart(problems, root, broken)


def broken_paths(root: Node, broken: Collection[Origin]) -> set[DataPath]:
    """Where values without meaning have ended up, by aliases and references too."""
    spread, found, before = set(broken), set[DataPath](), -1
    while len(found) > before:
        before = len(found)
        for path, node in walk(root):
            if spread.intersection((node.origin, *node.also)):
                found.add(path)
                spread.add(node.origin)
    return found


def plain(node: Node) -> object:
    """The data alone: dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(value) for value in node.value]
    return node.value


def find(root: Node, path: DataPath) -> Node | None:
    """The node at `path`, or None where the path leaves what was written."""
    node: Node | None = root
    for step in path:
        node = None if node is None else child(node, step)
    return node


def child(node: Node, step: str | int) -> Node | None:
    """What one key or index leads to."""
    if isinstance(node.value, dict):
        return node.value.get(step) if isinstance(step, str) else None
    if isinstance(node.value, list) and isinstance(step, int):
        return node.value[step] if -len(node.value) <= step < len(node.value) else None
    return None


def without(node: Node, paths: Collection[DataPath], path: DataPath = ()) -> Node:
    """The tree less what stands at `paths`; a list that loses an item is left out whole."""
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
                kept[key] = without(value, paths, inside)
        return replace(node, value=kept)
    return node


def nearest(root: Node, path: DataPath) -> tuple[Node, DataPath]:
    """The deepest node on the way to `path`, and its own path."""
    for length in range(len(path), -1, -1):
        node = find(root, path[:length])
        if node is not None:
            return node, path[:length]
    return root, ()


def places_of_use(root: Node, path: DataPath) -> Iterator[tuple[Origin, Via]]:
    """The aliases and merges (via the file) and references (via interpolation) through which the value at `path` got there."""
    for length in range(1, len(path) + 1):
        node = find(root, path[:length])
        if node is not None:
            yield from ((place, node.via) for place in node.also)


def walk(node: Node, path: DataPath = ()) -> Iterator[tuple[DataPath, Node]]:
    """Every node below and including `node`, parents first."""
    yield path, node
    if isinstance(node.value, dict):
        for key, value in node.value.items():
            yield from walk(value, (*path, key))
    elif isinstance(node.value, list):
        for index, value in enumerate(node.value):
            yield from walk(value, (*path, index))


def path_text(path: DataPath) -> str:
    """`("converters", 0, "lr")` as a person writes it: `converters[0].lr`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
