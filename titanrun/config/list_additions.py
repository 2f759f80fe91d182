"""Keys such as `converters+` in files, which add items to the inherited list.

Merging adds to a list that another file gives. An addition without such a list stays in the tree
under its own key until the schema is known; `apply_list_additions` adds it to the default.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from titanrun.config.diagnostics import format_value_kind
from titanrun.config.problems import DataPath, Problem, ProblemCode, RelatedLocation
from titanrun.config.tree import (
    Node,
    PartialReadError,
    build_tree,
    format_path,
)

ADDITION_SUFFIX = "+"


def find_added_key(key: str) -> str | None:
    """Return the key of the list that `key` adds to, or None for an ordinary key."""
    added = key.removesuffix(ADDITION_SUFFIX)
    return added if added and added != key else None


def merge_list_additions(merged: dict[str, Node], own: Mapping[str, Node]) -> None:
    """Merge the additions in `own` into `merged`, which holds what lies below it.

    An addition goes to the end of the list, else to the end of the additions made before it. One
    that stands beside its list in the same mapping stays: it is reported later.
    """
    for key, node in own.items():
        added = find_added_key(key)
        below = None if added is None or added in own else merged.get(added)
        if added is None:
            # what replaces a list also replaces what was to be added to it
            if key + ADDITION_SUFFIX not in own:
                merged.pop(key + ADDITION_SUFFIX, None)
        elif below is not None and isinstance(below.value, list):
            merged[added] = add_items(below, node)
        elif key in merged:
            merged[key] = add_items(merged[key], node)
        else:
            merged[key] = node


def add_items(below: Node, addition: Node) -> Node:
    """Return the list of the items of both nodes; what is no list counts as one item."""
    return replace(addition, value=[*get_items(below), *get_items(addition)])


def get_items(node: Node) -> list[Node]:
    """Return the items of a list, or the node itself as the only item."""
    return node.value if isinstance(node.value, list) else [replace(node, key=None)]


@dataclass(frozen=True, slots=True)
class ListSchema:
    """Schema queries about lists, by path."""

    is_list: Callable[[DataPath], bool]
    has_field: Callable[[DataPath], bool]
    get_default: Callable[[DataPath], object]


def apply_list_additions(
    root: Node, schema: ListSchema, keys: Collection[str] | None = None
) -> Node:
    """Return the tree with the remaining additions added to the defaults of their fields.

    An addition to a key that no field has stays, and validation reports it. `keys` limits this to
    some lists of the top level.

    Raises:
        PartialReadError: An addition stands beside its list or belongs to no list. The tree lacks
            such additions.
    """
    additions = ListAdditions(schema, keys)
    changed = additions.apply(root, ())
    if additions.problems:
        raise PartialReadError(additions.problems, changed, frozenset())
    return changed


@dataclass(slots=True)
class ListAdditions:
    """The additions of one tree on their way to their lists, and their problems."""

    schema: ListSchema
    keys: Collection[str] | None
    problems: list[Problem] = field(default_factory=list)

    def apply(self, node: Node, path: DataPath) -> Node:
        """Return the node at `path` with the additions in it and below it applied."""
        if isinstance(node.value, list):
            items = [self.apply(item, (*path, index)) for index, item in enumerate(node.value)]
            return replace(node, value=items)
        if not isinstance(node.value, dict):
            return node
        entries: dict[str, Node] = {}
        for key, child in node.value.items():
            target = self.find_target(path, key)
            if target is None:
                entries[key] = child if self.keys is not None else self.apply(child, (*path, key))
            elif problem := self.find_problem(target, node.value.get(target[-1]), child):
                self.problems.append(problem)
            else:
                whole = add_items(self.build_default(target, child), child)
                entries[target[-1]] = self.apply(whole, target)
        return replace(node, value=entries)

    def find_target(self, path: DataPath, key: str) -> tuple[*DataPath, str] | None:
        """Return the path of the field that the key adds to, or None for other keys."""
        added = find_added_key(key)
        if added is None or (self.keys is not None and added not in self.keys):
            return None
        return (*path, added) if self.schema.has_field((*path, added)) else None

    def find_problem(
        self, target: DataPath, present: Node | None, addition: Node
    ) -> Problem | None:
        """Return the problem of an addition that has no list to go to, or None."""
        name = format_path(target)
        code: ProblemCode
        if present is not None and isinstance(present.value, list):
            code, message = "duplicate-key", f"'{name}' and '{name}+' are given in one place"
            hint = f"join the two: {name} replaces the inherited list, {name}+ adds to it"
        elif present is not None or not self.schema.is_list(target):
            kind = "not a list" if present is None else f"{format_value_kind(present)}, not a list"
            code, message = "wrong-type", f"{name} is {kind}: nothing can be added to it"
            hint = f"write {name} without the +"
        else:
            return None
        origin = addition.key or addition.origin
        related = () if present is None else (RelatedLocation(present.origin, "set here", target),)
        return Problem(code, message, target, origin, hint=hint, related=related)

    def build_default(self, target: DataPath, addition: Node) -> Node:
        """Return the default list of a field, located at the key of the addition."""
        try:
            default = self.schema.get_default(target)
        except LookupError:
            default = None
        return build_tree([] if default is None else default, addition.key or addition.origin)
