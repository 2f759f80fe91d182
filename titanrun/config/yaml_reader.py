"""YAML 1.2 reader: one document with a mapping from a file, or one value of an override."""

from typing import Any

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import DocumentStartEvent, ScalarEvent, StreamEndEvent

from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText
from titanrun.config.tree import Node, build_read_error
from titanrun.config.yaml_errors import explain_yaml_error, find_directive_problem
from titanrun.config.yaml_nodes import NodeBuilder


def read_yaml(source: SourceText) -> Node:
    """Read the mapping in a YAML text.

    Raises ProblemsFound with all problems of the text, or PartialReadError if the rest is usable.
    """
    return read_document(source, 0)


def read_yaml_value(source: SourceText, start: int) -> Node:
    """Read the one value that begins at index `start`. Raise ProblemsFound if it is invalid.

    A missing value is null, marked at the text before it.
    """
    return read_document(source, start, allows_any_value=True)


def read_document(source: SourceText, start: int, *, allows_any_value: bool = False) -> Node:
    """Read the root node of the one document from `start` on."""
    builder = NodeBuilder(source, start)
    try:
        root = read_root_value(builder) if allows_any_value else read_root_mapping(builder)
    except MarkedYAMLError as error:
        raise ProblemsFound(
            [*builder.problems, explain_yaml_error(error, builder.positions, start)]
        ) from None
    if builder.problems:
        raise build_read_error(builder.problems, root)
    return root


def read_root_mapping(builder: NodeBuilder) -> Node:
    """Read the mapping at the top of a file."""
    event = find_root_event(builder)
    if event is None or is_empty_event(event):
        origin = Origin(builder.positions.source, 1, 1, 1)
        raise ProblemsFound(
            [*builder.problems, Problem("empty", "contains nothing but comments", origin=origin)]
        )
    root = builder.build(event, 0)
    report_extra_documents(builder)
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        builder.report_problem(
            "wrong-type",
            f"the file contains {kind}, not a mapping",
            root.origin,
            hint="write `key: value` lines",
        )
    return root


def read_root_value(builder: NodeBuilder) -> Node:
    """Read the value of an override and reject comments in it.

    A comment would drop text that the user typed.
    """
    event = find_root_event(builder)
    empty = event is None or is_empty_event(event)
    value = (
        Node(None, builder.positions.to_origin(0, builder.start))
        if empty
        else builder.build(event, 0)
    )
    comment = builder.text.find("#", builder.last_end)
    if comment >= 0:
        builder.report_problem(
            "syntax",
            "the text from # on would be a comment",
            builder.positions.to_point_origin(comment),
            hint="put the value in quotes",
        )
    report_extra_documents(builder)
    return value


def is_empty_event(event: Any) -> bool:
    """Return whether an event is an empty root."""
    return (
        isinstance(event, ScalarEvent)
        and not event.value
        and event.style is None
        and event.ctag is None
        and event.anchor is None
    )


def find_root_event(builder: NodeBuilder) -> Any:
    """Return the event of the root node, or None in an empty text."""
    next(builder.events)  # stream start
    event = next(builder.events)
    if isinstance(event, StreamEndEvent):
        return None
    if event.version not in (None, (1, 2)) or event.tags:
        refused = find_directive_problem(builder.positions, builder.start)
        assert refused is not None
        builder.add_problem(refused)
    return next(builder.events)


def report_extra_documents(builder: NodeBuilder) -> None:
    """Report everything after the first document."""
    for event in builder.events:
        if isinstance(event, DocumentStartEvent):
            mark = builder.positions.to_point_origin(builder.start + event.start_mark.index)
            builder.report_problem(
                "syntax", "a second document begins here", mark, hint="keep one document in a file"
            )
            return
