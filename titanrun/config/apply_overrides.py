"""Application of command-line overrides to a recipe tree."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from titanrun.config.compose import AUTO, find_mapping_entries, is_other_component, record_shadowed
from titanrun.config.data_diff import diff_data
from titanrun.config.diagnostics import format_value_kind
from titanrun.config.override_parser import Override, parse_overrides
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, RelatedLocation
from titanrun.config.tree import (
    Node,
    PartialReadError,
    Scalar,
    build_tree,
    find_node,
    format_path,
    to_plain_data,
)
from titanrun.config.yaml_scalars import ScalarRejection, parse_scalar

__all__ = ["Override", "apply_overrides", "parse_overrides"]


@dataclass(frozen=True, slots=True)
class SchemaLookup:
    """Schema queries that overrides need and that the config engine cannot answer itself."""

    is_list: Callable[[DataPath], bool]
    is_component: Callable[[DataPath], bool]
    get_default: Callable[[DataPath], object]
    has_field: Callable[[DataPath], bool]


def raise_no_default(path: DataPath) -> object:
    """Raise LookupError, for callers that have no defaults."""
    raise LookupError(path)


def apply_overrides(
    root: Node,
    overrides: Sequence[Override],
    *,
    is_list: Callable[[DataPath], bool] = lambda path: False,
    is_component: Callable[[DataPath], bool] = lambda path: True,
    get_default: Callable[[DataPath], object] = raise_no_default,
    has_field: Callable[[DataPath], bool] = lambda path: True,
) -> Node:
    """Return the tree with all overrides applied in order. `root` is not modified.

    `path=value` replaces the present value, even a mapping. If the override changes the `name` of a
    component, its other keys are dropped, except those set by earlier overrides. All other paths
    that no field has are left to validation.

    `is_list` says whether a list belongs at a path that the recipe does not set, so that `a,b`
    becomes one. `is_component` says whether text is short for a mapping with that name.
    `get_default` returns the list that `+=` and `-=` start from if the recipe has none, or raises
    LookupError. `has_field` distinguishes a reset of a field that the recipe does not set from a
    misspelled path.

    Raises PartialReadError with the problems of all overrides, and the tree after those that could
    be applied.
    """
    types = SchemaLookup(is_list, is_component, get_default, has_field)
    problems: list[Problem] = []
    for override in overrides:
        try:
            root = TreeEdit(override, types).apply(root)
        except ProblemsFound as found:
            problems += found.problems
    if problems:
        raise PartialReadError(problems, root, frozenset())
    return root


@dataclass(frozen=True, slots=True)
class TreeEdit:
    """One override on its way down the tree. Nodes on the path are copied, never changed."""

    override: Override
    schema: SchemaLookup

    def apply(self, root: Node) -> Node:
        """Return the tree after the override."""
        path = self.override.path
        if (
            self.override.operation == "reset"
            and find_node(root, path) is None
            and not self.schema.has_field(path)
        ):
            message = f"the recipe has no '{format_path(path)}'"
            raise ProblemsFound(
                [
                    Problem(
                        "usage",
                        message,
                        path,
                        self.override.origin,
                        hint="check the path; it has no default",
                    )
                ]
            )
        changed = self.descend(root, 0)
        assert changed is not None
        return changed

    def descend(self, node: Node | None, depth: int) -> Node | None:
        """Return the new node, `depth` steps below the root, that replaces `node`.

        Return None if the override removes it.
        """
        if depth == len(self.override.path):
            return self.apply_operation(node)
        if node is None and self.override.operation == "reset":
            return None
        step = self.override.path[depth]
        return (
            self.replace_item(node, step, depth)
            if isinstance(step, int)
            else self.replace_entry(node, step, depth)
        )

    def replace_item(self, node: Node | None, index: int, depth: int) -> Node:
        """Return the list with the item at `index` changed."""
        holder = format_path(self.override.path[:depth])
        if node is not None and not isinstance(node.value, list):
            raise self.build_error(
                f"{holder} is {format_value_kind(node)}, not a list",
                depth,
                node,
                hint=f"omit [{index}]",
            )
        items = node.value if node is not None and isinstance(node.value, list) else []
        if node is None or index >= len(items):
            raise self.build_error(
                format_past_end(holder, len(items), index),
                depth,
                node,
                hint=f"write {holder}+=item to add one",
            )
        item = self.descend(items[index], depth + 1)
        if item is None:
            raise self.build_error(
                "a list item has no default to reset to",
                depth,
                node,
                hint=f"write {holder}-={index} to remove it",
            )
        return replace(node, value=[*items[:index], item, *items[index + 1 :]])

    def replace_entry(self, node: Node | None, key: str, depth: int) -> Node:
        """Return the mapping with the value under `key` changed or dropped."""
        entries = self.get_mapping_entries(node, depth)
        child = self.descend(entries.get(key), depth + 1)
        if child is not None and depth > 0 and is_other_component(entries, {key: child}):
            kept = {
                name: part
                for name, entry in entries.items()
                if (part := find_overridden_part(entry))
            }
            return self.build_mapping({**kept, key: child}, node, depth)
        value = (
            {**entries, key: child}
            if child is not None
            else {name: entry for name, entry in entries.items() if name != key}
        )
        return (
            self.build_mapping(value, None, depth) if node is None else replace(node, value=value)
        )

    def build_mapping(self, value: dict[str, Node], replaced: Node | None, depth: int) -> Node:
        """Build the mapping that replaces another component or a missing value."""
        mark = self.override.step_origins[max(0, depth - 1)]
        shadowed = () if replaced is None else (replaced.origin, *replaced.shadowed_origins)
        return Node(value, mark, key=mark, shadowed_origins=shadowed, via="override")

    def get_mapping_entries(self, node: Node | None, depth: int) -> dict[str, Node]:
        """Return the entries of the mapping that the path traverses at `depth`.

        A bare component name counts as a mapping with `name`.
        """
        if node is None:
            return {}
        path = self.override.path[:depth]
        is_name = path[-1:] == ("name",) or not self.schema.is_component(path)
        found = None if isinstance(node.value, str) and is_name else find_mapping_entries(node)
        if found is not None:
            return found
        holder = format_path(path)
        if isinstance(node.value, list):
            hint = self.suggest_item(node.value, depth)
            raise self.build_error(f"{holder} is a list", depth, node, hint=hint)
        raise self.build_error(
            f"{holder} is {format_value_kind(node)}, which has no keys",
            depth,
            node,
            hint=f"set {holder} itself",
        )

    def suggest_item(self, items: list[Node], depth: int) -> str:
        """Return the hint for a path that goes on below a list as if that was a mapping.

        A step that is the name of an item means that item.
        """
        holder, rest = self.override.path[:depth], self.override.path[depth:]
        named = [number for number, item in enumerate(items) if find_item_name(item) == rest[0]]
        if named and len(rest) > 1:
            return f"write {format_path((*holder, named[0], *rest[1:]))}"
        return f"write {format_path((*holder, 0, *rest))} for its first item"

    def apply_operation(self, node: Node | None) -> Node | None:
        """Return the node at the end of the path after the operation."""
        override = self.override
        if override.operation == "reset":
            return None
        assert override.value is not None
        if override.operation == "set":
            in_list = (node is not None and isinstance(node.value, list)) or self.schema.is_list(
                override.path
            )
            value = split_words(override.value) if in_list else override.value
            return value if node is None else record_shadowed(value, node)
        before = self.get_list_node(node)
        items = before.value if isinstance(before.value, list) else []
        change = self.append_item if override.operation == "append" else self.remove_item
        return replace(before, value=change(before, items, override.value), via="override")

    def get_list_node(self, node: Node | None) -> Node:
        """Return the list to which items are added or from which they are removed."""
        path = self.override.path
        if node is None:
            try:
                default = self.schema.get_default(path)
            except LookupError:
                default = []
            # null if there is no list yet
            node = build_tree(
                [] if default is None and self.schema.is_list(path) else default,
                self.override.step_origins[-1],
                "override",
            )
        if not isinstance(node.value, list):
            hint = f"write {format_path(path)}=[...]"
            raise self.build_error(
                f"{format_path(path)} is {format_value_kind(node)}, not a list",
                len(path) - 1,
                node,
                hint=hint,
            )
        return node

    def append_item(self, before: Node, items: list[Node], item: Node) -> list[Node]:
        """Return the items with one item appended, or with the items of a list appended."""
        return [
            *items,
            *(item.value if isinstance(item.value, list) else [replace(item, key=None)]),
        ]

    def remove_item(self, before: Node, items: list[Node], item: Node) -> list[Node]:
        """Return the items without the matching one.

        It is matched by index, by equality with `item`, or by `item` as its name.
        """
        holder = format_path(self.override.path)
        if type(item.value) is int:
            if not 0 <= item.value < len(items):
                raise self.build_error(
                    format_past_end(holder, len(items), item.value), None, before
                )
            return [*items[: item.value], *items[item.value + 1 :]]
        found = [index for index, old in enumerate(items) if is_matching_item(old, item)]
        if not found:
            known = ", ".join(
                str(find_item_name(old)) for old in items if find_item_name(old) is not None
            )
            raise self.build_error(
                f"{holder} has no such item",
                None,
                before,
                hint=f"it contains {known}" if known else None,
            )
        if len(found) > 1:
            raise self.build_error(
                f"{holder} has {len(found)} such items",
                None,
                before,
                hint=f"use an index: {holder}-={found[0]}",
            )
        return [*items[: found[0]], *items[found[0] + 1 :]]

    def build_error(
        self, message: str, depth: int | None, node: Node | None, *, hint: str | None = None
    ) -> ProblemsFound:
        """Build a problem at step `depth` of the path (None: at the value).

        The location of the present node is attached.
        """
        if depth is None and self.override.value is not None:
            origin = self.override.value.origin
        else:
            origin = self.override.step_origins[-1 if depth is None else depth]
        related = (
            ()
            if node is None or node.origin.source is self.override.source
            else (RelatedLocation(node.origin, "current value is here"),)
        )
        return ProblemsFound(
            [Problem("usage", message, self.override.path, origin, hint=hint, related=related)]
        )


def find_overridden_part(node: Node) -> Node | None:
    """Return the part at or below a node that overrides have set, or None."""
    if node.via == "override" or not isinstance(node.value, dict):
        return node if node.via == "override" else None
    kept = {key: part for key, child in node.value.items() if (part := find_overridden_part(child))}
    return replace(node, value=kept) if kept else None


def format_past_end(holder: str, length: int, index: int) -> str:
    """Return the message about an index past the end of a list."""
    return f"{holder} has {length or 'no'} item{'' if length == 1 else 's'}, no [{index}]"


def find_item_name(node: Node) -> Scalar:
    """Return the name of a component, or the scalar itself."""
    value = node.value
    if isinstance(value, dict):
        name = value.get("name")
        return name.value if name is not None and isinstance(name.value, str) else None
    return None if isinstance(value, list) else value


def is_matching_item(item: Node, wanted: Node) -> bool:
    """Return whether `wanted` is the item or the item's name."""
    if isinstance(wanted.value, str) and isinstance(item.value, dict):
        return find_item_name(item) == wanted.value
    return not diff_data(to_plain_data(item), to_plain_data(wanted))


def split_words(node: Node) -> Node:
    """Split a scalar given for a list into its comma-separated words.

    Return quoted text and non-text scalars unchanged. null and auto stay.
    """
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
            Node(parse_word(word), Origin(source, 1, column, column + len(word)), via="override")
        )
    return replace(node, value=items)


def parse_word(word: str) -> Scalar:
    """Parse one word of a comma-separated list as YAML would read it."""
    value = parse_scalar(word)
    return word if isinstance(value, ScalarRejection) else value
