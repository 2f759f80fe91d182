"""Builds a tree with origins from YAML events: nesting, aliases, merge keys, and how much of them is accepted."""

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

from titanrun.config.limits import MAX_DEPTH, MAX_VALUES, cut, refuse_count, refuse_depth
from titanrun.config.problems import Origin, SourceText
from titanrun.config.scalars import resolve
from titanrun.config.tree import Node
from titanrun.config.yaml_words import EventReader

MERGE = "<<"
MERGE_HELP = "write `<<: *name`, or `<<: [*name, *other]`"


@dataclass(slots=True)
class Anchored:
    """What an anchor stands for: the node (None while it is being read), its expanded values and levels."""

    node: Node | None = None
    values: int = 0
    levels: int = 0


class NodeBuilder(EventReader):
    """Reads one text into nodes. `depth` is the number of mappings and lists around a node."""

    def __init__(self, source: SourceText, start: int) -> None:
        super().__init__(source, start)
        self.anchors: dict[str, Anchored] = {}
        self.values = 0
        self.deepest = 0

    def build(self, event: Any, depth: int, key: Origin | None = None) -> Node:
        """The node that begins with `event`."""
        if isinstance(event, AliasEvent):
            return self.alias(event, depth, key)
        self.count(1, event)
        if event.ctag is not None:
            self.refuse_tag(event)
        if event.anchor is None:
            return self.fresh(event, depth, key)
        anchored = self.anchors[event.anchor] = Anchored()
        values, deepest, self.deepest = self.values, self.deepest, depth
        node = self.fresh(event, depth, key)
        anchored.node, anchored.values, anchored.levels = (
            node,
            self.values - values + 1,
            self.deepest - depth,
        )
        self.deepest = max(deepest, self.deepest)
        return node

    def count(self, values: int, event: Any) -> None:
        """Ends reading at too many values. An alias counts with all it stands for, so that nothing need be expanded."""
        self.values += values
        if self.values > MAX_VALUES:
            refuse_count(self.problems, self.place(event), tuple(self.path))

    def enter(self, depth: int, event: Any) -> None:
        """Ends reading at too many levels."""
        self.deepest = max(self.deepest, depth)
        if depth > MAX_DEPTH:
            refuse_depth(self.problems, self.place(event), tuple(self.path))

    def alias(self, event: Any, depth: int, key: Origin | None) -> Node:
        """A node that shares the value of the anchored one and names this place too."""
        place = self.place(event)
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            help = f'set &{cut(event.anchor)} before it, or quote the text: "{cut("*" + event.anchor)}"'
            self.report("syntax", f"no anchor &{cut(event.anchor)} stands above", place, help=help)
            return Node(None, place, key)
        if anchored.node is None:
            self.report("limit", f"*{cut(event.anchor)} stands inside its own anchor", place)
            return Node(None, place, key)
        self.count(anchored.values, event)
        self.enter(depth + anchored.levels, event)
        target = anchored.node
        return Node(target.value, target.origin, key, also=(*target.also, place))

    def fresh(self, event: Any, depth: int, key: Origin | None) -> Node:
        """The node of an event that is no alias."""
        if isinstance(event, ScalarEvent):
            return self.scalar(event, key)
        self.enter(depth + 1, event)
        if isinstance(event, MappingStartEvent):
            return self.mapping(event, depth + 1, key)
        return self.sequence(event, depth + 1, key)

    def scalar(self, event: Any, key: Origin | None) -> Node:
        """A node without children. An empty one stands at its key, or at the dash of its list item."""
        place = self.scalar_place(event)
        if event.style is None and not event.value:
            at = self.start + event.start_mark.index
            return Node(None, key or self.places.origin(max(at - 1, 0), at), key)
        return Node(self.scalar_value(event, place), place, key)

    def sequence(self, event: Any, depth: int, key: Origin | None) -> Node:
        """A list."""
        start = self.content_start(event)
        stop = 0
        items: list[Node] = []
        while not isinstance(item := next(self.events), SequenceEndEvent):
            self.path.append(len(items))
            items.append(self.build(item, depth))
            self.path.pop()
            stop = stop or self.first_line_end(start, start)
        return Node(items, self.places.origin(start, self.collection_end(event, item, stop)), key)

    def mapping(self, event: Any, depth: int, key: Origin | None) -> Node:
        """A mapping: its own keys, then the merged ones that they leave."""
        start = self.content_start(event)
        stop = 0
        children: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        merge_mark: Origin | None = None
        while not isinstance(item := next(self.events), MappingEndEvent):
            mark = self.place(item)
            key_end = self.last_end
            if isinstance(item, ScalarEvent) and item.style is None and item.value == MERGE:
                self.merge(merged, mark, depth, first=merge_mark)
                merge_mark = mark
            else:
                self.entry(item, mark, children, depth)
            stop = stop or self.first_line_end(start, key_end)
        for name, child in merged.items():
            children.setdefault(name, child)
        return Node(
            children, self.places.origin(start, self.collection_end(event, item, stop)), key
        )

    def entry(self, event: Any, mark: Origin, children: dict[str, Node], depth: int) -> None:
        """Reads one key and its value into `children`."""
        name = self.key_text(event, mark, depth)
        self.path.append("?" if name is None else name)
        node = self.build(next(self.events), depth, mark)
        if name is not None and name in children:
            both = isinstance(node.value, dict) and isinstance(children[name].value, dict)
            help = "join the two" if both else "remove one of the two"
            self.report(
                "duplicate-key",
                f"key '{cut(name)}' is given twice",
                mark,
                help=help,
                first=children[name].key,
            )
        elif name is not None:
            children[name] = node
        self.path.pop()

    def key_text(self, event: Any, mark: Origin, depth: int) -> str | None:
        """The text of a key; None, with a problem, for all else."""
        if not isinstance(event, ScalarEvent):
            self.build(event, depth)
            kind = (
                "an alias"
                if isinstance(event, AliasEvent)
                else "a list"
                if isinstance(event, SequenceStartEvent)
                else "a mapping"
            )
            self.report("wrong-type", f"keys are text, not {kind}", mark, help="write the key out")
            return None
        if event.ctag is not None:
            self.refuse_tag(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = Anchored(Node(event.value, mark), 1)
        if event.style is not None:
            return self.joined(event.value, mark)
        value = resolve(event.value)
        if not isinstance(value, str):
            help = (
                f'write "{cut(event.value)}" in quotes'
                if event.value
                else "write a key before the colon"
            )
            self.report(
                "wrong-type",
                f"keys are text, not {cut(event.value) or 'nothing'}",
                mark,
                help=help,
                got=event.value,
            )
            return None
        self.check_ends(value, mark)
        return value

    def merge(
        self, merged: dict[str, Node], mark: Origin, depth: int, *, first: Origin | None
    ) -> None:
        """Reads the value of `<<` into `merged`, where the earlier of two equal keys stays."""
        if first is not None:
            self.report("duplicate-key", "<< is given twice", mark, help=MERGE_HELP, first=first)
        for target in self.merge_targets(next(self.events), mark, depth - 1):
            for name, child in target.items():
                merged.setdefault(name, replace(child, also=(*child.also, mark)))

    def merge_targets(self, event: Any, mark: Origin, depth: int) -> Iterator[dict[str, Node]]:
        """The mappings that `<<` names; a problem for everything else."""
        if not isinstance(event, SequenceStartEvent):
            yield from self.merge_target(event, mark, depth)
            return
        while not isinstance(item := next(self.events), SequenceEndEvent):
            yield from self.merge_target(item, mark, depth)
        self.last_end = self.start + item.end_mark.index

    def merge_target(self, event: Any, mark: Origin, depth: int) -> Iterator[dict[str, Node]]:
        """The mapping of one alias, if it is one."""
        before = len(self.problems)
        node = self.build(event, depth, mark)
        if isinstance(event, AliasEvent) and isinstance(node.value, dict):
            yield node.value
        elif len(self.problems) == before:
            self.report(
                "wrong-type",
                "<< takes an alias of a mapping, or a list of them",
                mark,
                help=MERGE_HELP,
            )
