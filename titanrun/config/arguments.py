"""Reads what the command line changes in a recipe: `training.steps=50`, `converters+=lora`, `--compile.enable`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from titanrun.config.names import PathMistake, scan_path
from titanrun.config.problems import (
    DataPath,
    Origin,
    Problem,
    ProblemsFound,
    Related,
    SourceText,
    fail,
)
from titanrun.config.source import read_value
from titanrun.config.tree import Node, path_text

Operation = Literal["set", "append", "remove", "reset"]

DASHES = "--"
OPERATORS: dict[str, Operation] = {"=": "set", "+=": "append", "-=": "remove", "!": "reset"}
OPERATOR = re.compile(r"\+=|-=|=|!|\Z")
# a word after `--path` that is an override of its own and not that path's value
NEXT_OVERRIDE = re.compile(r"--|[A-Za-z_][\w.\[\]]*[+-]?=|[A-Za-z_]\w*[.\[][\w.\[\]]*!\Z")
INNER_DASH = re.compile(r"(?<=\w)-(?=\w)")
# what Python puts in place of bytes that are not UTF-8
SURROGATE = re.compile("[\ud800-\udfff]")
NEGATION = re.compile(r"no_(?=.)")
COMMENT = re.compile(r"(?:^|\s)#")
# what begins with one of these is YAML that means something; any other text that YAML cannot read is text
YAML_MARKS = tuple("[{\"'!&|>")
HELP = "write path=value, path+=item, path-=item or path!"


@dataclass(frozen=True, slots=True)
class Override:
    """One change of the recipe. `marks` holds the place of each step of `path`; a reset has no value."""

    path: DataPath
    operation: Operation
    source: SourceText
    marks: tuple[Origin, ...]
    value: Node | None = None

    @property
    def origin(self) -> Origin:
        """The place of the whole path in the argument."""
        return replace(self.marks[-1], column=self.marks[0].column)


class OverridesInPart(ProblemsFound):
    """Some arguments are no overrides; `overrides` are the others, `broken` the paths whose values cannot be read or are given twice."""

    def __init__(self, problems: Sequence[Problem], overrides: Sequence[Override]) -> None:
        self.overrides = list(overrides)
        self.broken: set[DataPath] = {problem.path for problem in problems if problem.path}
        super().__init__(problems)


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """The overrides that `arguments` spell, numbered from 1 in the order given.

    Takes `path=value` (the value is YAML), `path+=item`, `path-=item or index`, `path!`, and torchtitan's `--path value`,
    `--path=value`, `--path` and `--section.no_key`; there dashes inside a key stand for underscores. Raises OverridesInPart with all
    problems of all arguments.
    """
    overrides: list[Override] = []
    problems: list[Problem] = []
    for number, text in enumerate(joined(arguments), 1):
        try:
            overrides.append(
                parse_override(SourceText(f"<override {number}>", text, kind="override"))
            )
        except ProblemsFound as found:
            problems += found.problems
    problems += clashes(overrides)
    if problems:
        raise OverridesInPart(problems, overrides)
    return overrides


def joined(arguments: Sequence[str]) -> Iterator[str]:
    """One text an override: `--path` takes the next argument along where that is its value."""
    waiting: str | None = None
    for argument in arguments:
        if waiting is not None and not NEXT_OVERRIDE.match(argument):
            yield f"{waiting} {argument}"
            waiting = None
            continue
        if waiting is not None:
            yield waiting
        waiting = (
            argument if argument.startswith(DASHES) and not re.search(r"[=!]", argument) else None
        )
        if waiting is None:
            yield argument
    if waiting is not None:
        yield waiting


def parse_override(source: SourceText) -> Override:
    """The override that one argument spells."""
    text = source.text
    dashed = text.startswith(DASHES)
    start = len(DASHES) if dashed else 0
    if not text[start:].strip():
        raise usage(source, "the override is empty", 0, len(text))
    if SURROGATE.search(text):
        raise usage(source, "the argument is not UTF-8 text", 0, len(text))
    head = re.split(r"[= ]", text, maxsplit=1)[0]
    try:
        steps = scan_path(INNER_DASH.sub("_", head) if dashed else text, start)
    except PathMistake as mistake:
        raise usage(source, mistake.message, mistake.offset) from None
    end = steps[-1].end
    marks = tuple(Origin(source, 1, step.start + 1, step.end + 1) for step in steps)
    path = tuple(step.key for step in steps)
    if path == ("extends",):
        raise usage(
            source,
            "extends cannot be changed here",
            start,
            end,
            help="give the recipe that extends what you want",
        )
    if dashed and end == len(text):
        return flag(path, source, marks)
    if dashed and text[end] == " ":
        return Override(path, "set", source, marks, value_at(path, source, end + 1, marks[-1]))
    operator = OPERATOR.match(text, end)
    if operator is None:
        raise usage(source, f"expected =, +=, -= or ! after '{text[start:end]}'", end)
    if not operator[0]:
        raise usage(
            source,
            f"'{text[start:end]}' has no value",
            start,
            end,
            help=f"write {text[start:end]}=VALUE",
        )
    if operator[0] != "!":
        return Override(
            path,
            OPERATORS[operator[0]],
            source,
            marks,
            value_at(path, source, operator.end(), marks[-1]),
        )
    if operator.end() < len(text):
        raise usage(source, "nothing may follow !", operator.end(), len(text))
    return Override(path, "reset", source, marks)


def usage(
    source: SourceText, message: str, start: int, end: int | None = None, *, help: str = HELP
) -> ProblemsFound:
    """A problem of how an argument is spelled, at offsets into it."""
    return fail(
        "usage",
        message,
        origin=Origin(source, 1, start + 1, (start + 1 if end is None else end) + 1),
        help=help,
    )


def flag(path: DataPath, source: SourceText, marks: tuple[Origin, ...]) -> Override:
    """`--compile.enable` is true, `--compile.no_enable` sets the same key to false."""
    *holder, key = path
    negated = isinstance(key, str) and NEGATION.match(key)
    if isinstance(key, str) and negated:
        key = key[negated.end() :]
    return Override(
        (*holder, key),
        "set",
        source,
        marks,
        Node(not negated, marks[-1], key=marks[-1], via="override"),
    )


def value_at(path: DataPath, source: SourceText, start: int, key: Origin) -> Node:
    """The value that an override gives to `path`; a value that cannot be read is a problem of that path."""
    try:
        return read_override_value(source, start, key)
    except ProblemsFound as found:
        raise ProblemsFound(
            [replace(problem, path=(*path, *problem.path)) for problem in found.problems]
        ) from None


def read_override_value(source: SourceText, start: int, key: Origin) -> Node:
    """The YAML value from offset `start` on. What YAML cannot read, or would cut at a `#`, is text as it stands."""
    text = source.text[start:]
    if not text.strip():
        help = "write null for nothing, '\"\"' for empty text, or path! for the default"
        raise usage(
            source, f"no value after '{source.text.rstrip()}'", 0, len(source.text), help=help
        )
    plain_text = not text.lstrip().startswith(YAML_MARKS)
    if plain_text and COMMENT.search(text):
        return as_text(source, start, key)
    try:
        return replace(overriding(read_value(source, start=start)), key=key)
    except ProblemsFound as found:
        if plain_text and all(problem.code == "syntax" for problem in found.problems):
            return as_text(source, start, key)
        raise


def as_text(source: SourceText, start: int, key: Origin | None) -> Node:
    """The rest of the argument from `start` on, as text."""
    text = source.text[start:].strip()
    column = source.text.index(text, start) + 1
    return Node(
        text, Origin(source, 1, column, column + len(text.split("\n")[0])), key=key, via="override"
    )


def overriding(node: Node) -> Node:
    """The node and all below it, marked as given on the command line."""
    value = node.value
    if isinstance(value, dict):
        value = {key: overriding(child) for key, child in value.items()}
    elif isinstance(value, list):
        value = [overriding(child) for child in value]
    return replace(node, value=value, via="override")


def clashes(overrides: Sequence[Override]) -> Iterator[Problem]:
    """Paths given twice, and a value that an override replaces after another one has changed something in it."""
    for later, earlier in (
        (later, earlier) for index, later in enumerate(overrides) for earlier in overrides[:index]
    ):
        related = (Related(earlier.origin, "first given here", earlier.path),)
        adds = {earlier.operation, later.operation} <= {"append", "remove"}
        inside = (
            len(earlier.path) > len(later.path) and earlier.path[: len(later.path)] == later.path
        )
        name = path_text(later.path)
        if earlier.path == later.path and not adds:
            message = f"'{name}' is given twice"
            yield Problem(
                "usage",
                message,
                later.path,
                later.origin,
                help="keep one of the two",
                related=related,
            )
        elif inside and later.operation in ("set", "reset"):
            message = f"'{name}' would undo '{path_text(earlier.path)}', given before it"
            yield Problem(
                "usage",
                message,
                later.path,
                later.origin,
                help="give the longer path last",
                related=related,
            )
