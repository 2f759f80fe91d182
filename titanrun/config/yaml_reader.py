"""Reads YAML 1.2: one document with a mapping from a file, or one value from an override."""

from typing import Any

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import DocumentStartEvent, ScalarEvent, StreamEndEvent

from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText
from titanrun.config.tree import Node, in_part
from titanrun.config.yaml_nodes import NodeBuilder
from titanrun.config.yaml_syntax import directive, explain


def read_yaml(source: SourceText) -> Node:
    """The mapping in a YAML text; raises ProblemsFound with all that is wrong with it, ReadInPart where the rest can be used."""
    return read(source, 0)


def read_yaml_value(source: SourceText, start: int) -> Node:
    """The one value that begins at index `start`; raises ProblemsFound. Nothing there is null, marked at what stands before."""
    return read(source, start, any_value=True)


def read(source: SourceText, start: int, *, any_value: bool = False) -> Node:
    """The root node of the one document from `start` on."""
    builder = NodeBuilder(source, start)
    try:
        root = read_value(builder) if any_value else read_mapping(builder)
    except MarkedYAMLError as error:
        raise ProblemsFound([*builder.problems, explain(error, builder.places, start)]) from None
    if builder.problems:
        raise in_part(builder.problems, root)
    return root


def read_mapping(builder: NodeBuilder) -> Node:
    """The mapping at the top of a file."""
    event = first_event(builder)
    if event is None or is_empty(event):
        origin = Origin(builder.places.source, 1, 1, 1)
        raise ProblemsFound(
            [*builder.problems, Problem("empty", "holds nothing but comments", origin=origin)]
        )
    root = builder.build(event, 0)
    check_end(builder)
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        builder.report(
            "wrong-type",
            f"the file holds {kind}, not a mapping",
            root.origin,
            help="write `key: value` lines",
        )
    return root


def read_value(builder: NodeBuilder) -> Node:
    """The value of an override, to the end of which a comment would swallow what the user typed."""
    event = first_event(builder)
    empty = event is None or is_empty(event)
    value = (
        Node(None, builder.places.origin(0, builder.start)) if empty else builder.build(event, 0)
    )
    comment = builder.text.find("#", builder.last_end)
    if comment >= 0:
        builder.report(
            "syntax",
            "the text from # on would be a comment",
            builder.places.point(comment),
            help="put the value in quotes",
        )
    check_end(builder)
    return value


def is_empty(event: Any) -> bool:
    """Whether nothing stands where the root should."""
    return (
        isinstance(event, ScalarEvent)
        and not event.value
        and event.style is None
        and event.ctag is None
        and event.anchor is None
    )


def first_event(builder: NodeBuilder) -> Any:
    """The event of the root node; None in a text without any."""
    next(builder.events)  # the start of the stream
    event = next(builder.events)
    if isinstance(event, StreamEndEvent):
        return None
    if event.version not in (None, (1, 2)) or event.tags:
        refused = directive(builder.places, builder.start)
        assert refused is not None
        builder.note(refused)
    return next(builder.events)


def check_end(builder: NodeBuilder) -> None:
    """Notes what follows the document."""
    for event in builder.events:
        if isinstance(event, DocumentStartEvent):
            mark = builder.places.point(builder.start + event.start_mark.index)
            builder.report(
                "syntax", "a second document begins here", mark, help="keep one document in a file"
            )
            return
