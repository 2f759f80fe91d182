"""Applies the command line's changes to a recipe's tree."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from titanrun.config.arguments import Override, parse_overrides
from titanrun.config.compose import AUTO, as_mapping, names_another, shadowing
from titanrun.config.diff import compare
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, Related
from titanrun.config.render import shorten
from titanrun.config.scalars import Refusal, resolve
from titanrun.config.tree import Node, ReadInPart, Scalar, find, path_text, plain

__all__ = ["Override", "apply_overrides", "parse_overrides"]


@dataclass(frozen=True, slots=True)
class Types:
    """What overrides ask about the schema, which the config engine does not know."""

    is_list: Callable[[DataPath], bool]
    is_component: Callable[[DataPath], bool]
    default_of: Callable[[DataPath], object]
    has_field: Callable[[DataPath], bool]


def no_default(path: DataPath) -> object:
    """For callers who know of no defaults."""
    raise LookupError(path)


def apply_overrides(
    root: Node,
    overrides: Sequence[Override],
    *,
    is_list: Callable[[DataPath], bool] = lambda path: False,
    is_component: Callable[[DataPath], bool] = lambda path: True,
    default_of: Callable[[DataPath], object] = no_default,
    has_field: Callable[[DataPath], bool] = lambda path: True,
) -> Node:
    """The tree with all overrides applied in order; `root` stays as it is.

    `path=value` replaces what stands there, mappings too; another `name` drops the component's keys but those of earlier overrides.
    `is_list` says where a list belongs although the recipe has none, so that `a,b` becomes one; `is_component` where text is short
    for a mapping with that name; `default_of` gives the list that `+=` and `-=` begin with where the recipe has none, or raises
    LookupError; `has_field` tells a reset of what the recipe does not write from a misspelt one. Raises ReadInPart with the
    problems of all overrides, and the tree after those that could be applied. All other paths that no field has are left to validation.
    """
    types = Types(is_list, is_component, default_of, has_field)
    problems: list[Problem] = []
    for override in overrides:
        try:
            root = Edit(override, types).applied(root)
        except ProblemsFound as found:
            problems += found.problems
    if problems:
        raise ReadInPart(problems, root, frozenset())
    return root


@dataclass(frozen=True, slots=True)
class Edit:
    """One override on its way down the tree; the nodes on the way are copied, never changed."""

    override: Override
    types: Types

    def applied(self, root: Node) -> Node:
        """The tree after the override."""
        path = self.override.path
        if (
            self.override.operation == "reset"
            and find(root, path) is None
            and not self.types.has_field(path)
        ):
            message = f"the recipe has no '{path_text(path)}'"
            raise ProblemsFound(
                [
                    Problem(
                        "usage",
                        message,
                        path,
                        self.override.origin,
                        help="check the path; it has no default",
                    )
                ]
            )
        changed = self.descend(root, 0)
        assert changed is not None
        return changed

    def descend(self, node: Node | None, depth: int) -> Node | None:
        """What stands after the override where `node` stood, `depth` steps below the root; None for nothing."""
        if depth == len(self.override.path):
            return self.changed(node)
        if node is None and self.override.operation == "reset":
            return None
        step = self.override.path[depth]
        return (
            self.with_item(node, step, depth)
            if isinstance(step, int)
            else self.with_entry(node, step, depth)
        )

    def with_item(self, node: Node | None, index: int, depth: int) -> Node:
        """The list with the item at `index` changed."""
        holder = path_text(self.override.path[:depth])
        if node is not None and not isinstance(node.value, list):
            raise self.refusal(
                f"{holder} is {kind_of(node)}, not a list", depth, node, help=f"leave out [{index}]"
            )
        items = node.value if node is not None and isinstance(node.value, list) else []
        if node is None or index >= len(items):
            raise self.refusal(
                past_end(holder, len(items), index),
                depth,
                node,
                help=f"write {holder}+=item to add one",
            )
        item = self.descend(items[index], depth + 1)
        if item is None:
            raise self.refusal(
                "an item has no default to go back to",
                depth,
                node,
                help=f"write {holder}-={index} to remove it",
            )
        return replace(node, value=[*items[:index], item, *items[index + 1 :]])

    def with_entry(self, node: Node | None, key: str, depth: int) -> Node:
        """The mapping with the value under `key` changed, or dropped."""
        entries = self.entries(node, depth)
        child = self.descend(entries.get(key), depth + 1)
        if child is not None and depth > 0 and names_another(entries, {key: child}):
            kept = {
                name: part for name, entry in entries.items() if (part := overridden_part(entry))
            }
            return self.holder({**kept, key: child}, node, depth)
        value = (
            {**entries, key: child}
            if child is not None
            else {name: entry for name, entry in entries.items() if name != key}
        )
        return self.holder(value, None, depth) if node is None else replace(node, value=value)

    def holder(self, value: dict[str, Node], replaced: Node | None, depth: int) -> Node:
        """A mapping that the override makes, in the place of another component or of nothing."""
        mark = self.override.marks[max(0, depth - 1)]
        shadowed = () if replaced is None else (replaced.origin, *replaced.shadowed)
        return Node(value, mark, key=mark, shadowed=shadowed, via="override")

    def entries(self, node: Node | None, depth: int) -> dict[str, Node]:
        """The entries of the mapping that the path goes through at `depth`; a bare component name is a mapping with `name`."""
        if node is None:
            return {}
        path = self.override.path[:depth]
        is_name = path[-1:] == ("name",) or not self.types.is_component(path)
        found = None if isinstance(node.value, str) and is_name else as_mapping(node)
        if found is not None:
            return found
        holder, step = path_text(path), self.override.path[depth]
        if isinstance(node.value, list):
            raise self.refusal(
                f"{holder} is a list",
                depth,
                node,
                help=f"write {holder}[0].{step} for its first item",
            )
        raise self.refusal(
            f"{holder} is {kind_of(node)}, which has no keys",
            depth,
            node,
            help=f"set {holder} itself",
        )

    def changed(self, node: Node | None) -> Node | None:
        """What stands at the end of the path after the operation."""
        override = self.override
        if override.operation == "reset":
            return None
        assert override.value is not None
        if override.operation == "set":
            in_list = (node is not None and isinstance(node.value, list)) or self.types.is_list(
                override.path
            )
            value = words(override.value) if in_list else override.value
            return value if node is None else shadowing(value, node)
        before = self.before(node)
        items = before.value if isinstance(before.value, list) else []
        change = self.appended if override.operation == "append" else self.shortened
        return replace(before, value=change(before, items, override.value), via="override")

    def before(self, node: Node | None) -> Node:
        """The list that items are added to or taken from."""
        path = self.override.path
        if node is None:
            try:
                default = self.types.default_of(path)
            except LookupError:
                default = []
            # null where there is no list yet
            node = as_node(
                [] if default is None and self.types.is_list(path) else default,
                self.override.marks[-1],
            )
        if not isinstance(node.value, list):
            help = f"write {path_text(path)}=[...]"
            raise self.refusal(
                f"{path_text(path)} is {kind_of(node)}, not a list", len(path) - 1, node, help=help
            )
        return node

    def appended(self, before: Node, items: list[Node], item: Node) -> list[Node]:
        """The items and one more, or those of a list."""
        return [
            *items,
            *(item.value if isinstance(item.value, list) else [replace(item, key=None)]),
        ]

    def shortened(self, before: Node, items: list[Node], item: Node) -> list[Node]:
        """The items without the one at an index, or without the one that equals `item` or has it as its name."""
        holder = path_text(self.override.path)
        if type(item.value) is int:
            if not 0 <= item.value < len(items):
                raise self.refusal(past_end(holder, len(items), item.value), None, before)
            return [*items[: item.value], *items[item.value + 1 :]]
        found = [index for index, old in enumerate(items) if matches(old, item)]
        if not found:
            known = ", ".join(str(name_of(old)) for old in items if name_of(old) is not None)
            raise self.refusal(
                f"{holder} has no such item",
                None,
                before,
                help=f"it holds {known}" if known else None,
            )
        if len(found) > 1:
            raise self.refusal(
                f"{holder} has {len(found)} such items",
                None,
                before,
                help=f"give an index: {holder}-={found[0]}",
            )
        return [*items[: found[0]], *items[found[0] + 1 :]]

    def refusal(
        self, message: str, depth: int | None, node: Node | None, *, help: str | None = None
    ) -> ProblemsFound:
        """A problem at the step `depth` of the path (None: at the value), with the place of what stands there."""
        if depth is None and self.override.value is not None:
            origin = self.override.value.origin
        else:
            origin = self.override.marks[-1 if depth is None else depth]
        related = (
            ()
            if node is None or node.origin.source is self.override.source
            else (Related(node.origin, "it stands here"),)
        )
        return ProblemsFound(
            [Problem("usage", message, self.override.path, origin, help=help, related=related)]
        )


def overridden_part(node: Node) -> Node | None:
    """What overrides have set at or below a node; None for nothing."""
    if node.via == "override" or not isinstance(node.value, dict):
        return node if node.via == "override" else None
    kept = {key: part for key, child in node.value.items() if (part := overridden_part(child))}
    return replace(node, value=kept) if kept else None


def past_end(holder: str, length: int, index: int) -> str:
    """What is wrong with an index."""
    return f"{holder} has {length or 'no'} item{'' if length == 1 else 's'}, no [{index}]"


def kind_of(node: Node) -> str:
    """A value as messages call it."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    return shorten(node.value)


def as_node(data: object, origin: Origin) -> Node:
    """Plain data as a tree in which everything stands at `origin`."""
    if isinstance(data, dict):
        return Node(
            {key: as_node(child, origin) for key, child in data.items()}, origin, via="override"
        )
    if isinstance(data, list | tuple):
        return Node([as_node(item, origin) for item in data], origin, via="override")
    assert data is None or isinstance(data, bool | int | float | str)
    return Node(data, origin, via="override")


def name_of(node: Node) -> Scalar:
    """The name of a component, or the scalar itself."""
    value = node.value
    if isinstance(value, dict):
        name = value.get("name")
        return name.value if name is not None and isinstance(name.value, str) else None
    return None if isinstance(value, list) else value


def matches(item: Node, wanted: Node) -> bool:
    """Whether `wanted` is the item or the item's name."""
    if isinstance(wanted.value, str) and isinstance(item.value, dict):
        return name_of(item) == wanted.value
    return not compare(plain(item), plain(wanted))


def words(node: Node) -> Node:
    """A scalar given for a list: its comma-separated words, or itself where it is quoted or no text. null and auto stay."""
    source, first = node.origin.source, node.origin.column - 1
    if isinstance(node.value, dict | list) or node.value in (None, AUTO):
        return node
    if (
        not isinstance(node.value, str)
        or source.text[first : first + 1] in ('"', "'")
        or node.origin.line > 1
    ):
        return replace(node, value=[replace(node, key=None)])
    items = []
    for found in re.finditer(r"[^,]*[^,\s][^,]*", node.value):
        word = found[0].strip()
        column = first + found.start() + found[0].index(word) + 1
        items.append(
            Node(word_value(word), Origin(source, 1, column, column + len(word)), via="override")
        )
    return replace(node, value=items)


def word_value(word: str) -> Scalar:
    """One word of a comma-separated list as the scalar that YAML sees in it."""
    value = resolve(word)
    return word if isinstance(value, Refusal) else value
