"""Tree with origins from YAML events: nesting, aliases, merge keys and size limits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from titanrun.config.limits import (
    MAX_DEPTH,
    MAX_VALUES,
    raise_too_deep,
    raise_too_many_values,
    truncate_for_message,
)
from titanrun.config.problems import Origin, SourceText
from titanrun.config.tree import Node
from titanrun.config.yaml_event_reader import EventReader
from titanrun.config.yaml_scalars import parse_scalar

MERGE = "<<"
MERGE_HELP = "write `<<: *name`, or `<<: [*name, *other]`"


@dataclass(slots=True)
class AnchorTarget:
    """Target of an anchor: its node (None while it is being read), expanded values and levels."""

    node: Node | None = None
    num_values: int = 0
    num_levels: int = 0


class NodeBuilder(EventReader):
    """Builder of the nodes of one text. `depth` counts the mappings and lists around a node."""

    def __init__(self, source: SourceText, start: int) -> None:
        super().__init__(source, start)
        self.anchors: dict[str, AnchorTarget] = {}
        self.num_values = 0
        self.max_depth = 0

    def build(self, event: Any, depth: int, key: Origin | None = None) -> Node:
        """Build the node that begins with `event`."""
        if isinstance(event, AliasEvent):
            return self.build_alias(event, depth, key)
        self.count_values(1, event)
        if event.ctag is not None:
            self.report_tag(event)
        if event.anchor is None:
            return self.build_unaliased(event, depth, key)
        anchored = self.anchors[event.anchor] = AnchorTarget()
        values, deepest, self.max_depth = self.num_values, self.max_depth, depth
        node = self.build_unaliased(event, depth, key)
        anchored.node, anchored.num_values, anchored.num_levels = (
            node,
            self.num_values - values + 1,
            self.max_depth - depth,
        )
        self.max_depth = max(deepest, self.max_depth)
        return node

    def count_values(self, values: int, event: Any) -> None:
        """Count values and raise at too many.

        An alias counts as all values it refers to, so that nothing has to be expanded.
        """
        self.num_values += values
        if self.num_values > MAX_VALUES:
            raise_too_many_values(self.problems, self.to_origin(event), tuple(self.path))

    def check_depth(self, depth: int, event: Any) -> None:
        """Raise at too many levels."""
        self.max_depth = max(self.max_depth, depth)
        if depth > MAX_DEPTH:
            raise_too_deep(self.problems, self.to_origin(event), tuple(self.path))

    def build_alias(self, event: Any, depth: int, key: Origin | None) -> Node:
        """Build a node that shares the anchored value and also has this location."""
        place = self.to_origin(event)
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            hint = (
                f"set &{truncate_for_message(event.anchor)} before it, or quote the text: "
                f'"{truncate_for_message("*" + event.anchor)}"'
            )
            self.report_problem(
                "syntax",
                f"no anchor &{truncate_for_message(event.anchor)} is defined above",
                place,
                hint=hint,
            )
            return Node(None, place, key)
        if anchored.node is None:
            self.report_problem(
                "limit",
                f"*{truncate_for_message(event.anchor)} is inside its own anchor",
                place,
            )
            return Node(None, place, key)
        self.count_values(anchored.num_values, event)
        self.check_depth(depth + anchored.num_levels, event)
        target = anchored.node
        return Node(target.value, target.origin, key, alias_origins=(*target.alias_origins, place))

    def build_unaliased(self, event: Any, depth: int, key: Origin | None) -> Node:
        """Build the node of an event that is not an alias."""
        if isinstance(event, ScalarEvent):
            return self.build_scalar(event, key)
        self.check_depth(depth + 1, event)
        if isinstance(event, MappingStartEvent):
            return self.build_mapping(event, depth + 1, key)
        return self.build_sequence(event, depth + 1, key)

    def build_scalar(self, event: Any, key: Origin | None) -> Node:
        """Build a node without children.

        An empty one is located at its key, or at the dash of its list item.
        """
        place = self.get_scalar_origin(event)
        if event.style is None and not event.value:
            at = self.start + event.start_mark.index
            return Node(None, key or self.positions.to_origin(max(at - 1, 0), at), key)
        return Node(self.parse_scalar_event(event, place), place, key)

    def build_sequence(self, event: Any, depth: int, key: Origin | None) -> Node:
        """Build a list."""
        start = self.get_content_start(event)
        stop = 0
        items: list[Node] = []
        while not isinstance(item := next(self.events), SequenceEndEvent):
            self.path.append(len(items))
            items.append(self.build(item, depth))
            self.path.pop()
            stop = stop or self.get_first_line_end(start, start)
        return Node(
            items, self.positions.to_origin(start, self.get_collection_end(event, item, stop)), key
        )

    def build_mapping(self, event: Any, depth: int, key: Origin | None) -> Node:
        """Build a mapping: its own keys, then the merged keys that it does not override."""
        start = self.get_content_start(event)
        stop = 0
        children: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        merge_mark: Origin | None = None
        while not isinstance(item := next(self.events), MappingEndEvent):
            mark = self.to_origin(item)
            key_end = self.last_end
            if isinstance(item, ScalarEvent) and item.style is None and item.value == MERGE:
                self.read_merge(merged, mark, depth, first=merge_mark)
                merge_mark = mark
            else:
                self.read_entry(item, mark, children, depth)
            stop = stop or self.get_first_line_end(start, key_end)
        for name, child in merged.items():
            children.setdefault(name, child)
        return Node(
            children,
            self.positions.to_origin(start, self.get_collection_end(event, item, stop)),
            key,
        )

    def read_entry(self, event: Any, mark: Origin, children: dict[str, Node], depth: int) -> None:
        """Read one key and its value into `children`."""
        name = self.read_key(event, mark, depth)
        self.path.append("?" if name is None else name)
        node = self.build(next(self.events), depth, mark)
        if name is not None and name in children:
            both = isinstance(node.value, dict) and isinstance(children[name].value, dict)
            hint = "join the two" if both else "remove one of the two"
            self.report_problem(
                "duplicate-key",
                f"key '{truncate_for_message(name)}' is given twice",
                mark,
                hint=hint,
                first=children[name].key,
            )
        elif name is not None:
            children[name] = node
        self.path.pop()

    def read_key(self, event: Any, mark: Origin, depth: int) -> str | None:
        """Return the text of a key. Return None, with a problem, for other keys."""
        if not isinstance(event, ScalarEvent):
            self.build(event, depth)
            kind = (
                "an alias"
                if isinstance(event, AliasEvent)
                else "a list"
                if isinstance(event, SequenceStartEvent)
                else "a mapping"
            )
            self.report_problem(
                "wrong-type", f"keys are text, not {kind}", mark, hint="write the key literally"
            )
            return None
        if event.ctag is not None:
            self.report_tag(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = AnchorTarget(Node(event.value, mark), 1)
        if event.style is not None:
            return self.join_surrogates(event.value, mark)
        value = parse_scalar(event.value)
        if not isinstance(value, str):
            hint = (
                f'write "{truncate_for_message(event.value)}" in quotes'
                if event.value
                else "write a key before the colon"
            )
            self.report_problem(
                "wrong-type",
                f"keys are text, not {truncate_for_message(event.value) or 'nothing'}",
                mark,
                hint=hint,
                got=event.value,
            )
            return None
        self.report_odd_blanks(value, mark)
        return value

    def read_merge(
        self, merged: dict[str, Node], mark: Origin, depth: int, *, first: Origin | None
    ) -> None:
        """Read the value of `<<` into `merged`; the earlier of two equal keys wins."""
        if first is not None:
            self.report_problem(
                "duplicate-key", "<< is given twice", mark, hint=MERGE_HELP, first=first
            )
        for target in self.iter_merge_targets(next(self.events), mark, depth - 1):
            for name, child in target.items():
                merged.setdefault(name, replace(child, alias_origins=(*child.alias_origins, mark)))

    def iter_merge_targets(self, event: Any, mark: Origin, depth: int) -> Iterator[dict[str, Node]]:
        """Yield the mappings that `<<` names, and report everything else."""
        if not isinstance(event, SequenceStartEvent):
            yield from self.iter_merge_target(event, mark, depth)
            return
        while not isinstance(item := next(self.events), SequenceEndEvent):
            yield from self.iter_merge_target(item, mark, depth)
        self.last_end = self.start + item.end_mark.index

    def iter_merge_target(self, event: Any, mark: Origin, depth: int) -> Iterator[dict[str, Node]]:
        """Yield the mapping of one alias, or report a problem."""
        before = len(self.problems)
        node = self.build(event, depth, mark)
        if isinstance(event, AliasEvent) and isinstance(node.value, dict):
            yield node.value
        elif len(self.problems) == before:
            self.report_problem(
                "wrong-type",
                "<< must be an alias of a mapping, or a list of them",
                mark,
                hint=MERGE_HELP,
            )
