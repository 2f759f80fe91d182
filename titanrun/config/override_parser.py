"""Parser of command-line overrides such as `training.steps=50` and `converters+=lora`.

Flags such as `--compile.enable` are also accepted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from titanrun.config.path_syntax import INDEX_AFTER_DOT, PathSyntaxError, scan_path
from titanrun.config.problems import (
    DataPath,
    Origin,
    Problem,
    ProblemsFound,
    RelatedLocation,
    SourceText,
    problem_error,
)
from titanrun.config.read_source import read_value_text
from titanrun.config.tree import Node, format_path

Operation = Literal["set", "append", "remove", "reset"]

DASHES = "--"
OPERATORS: dict[str, Operation] = {"=": "set", "+=": "append", "-=": "remove", "!": "reset"}
OPERATOR = re.compile(r"\+=|-=|=|!|\Z")
# a word after `--path` that is a separate override instead of the value of that path
OVERRIDE_ARGUMENT = re.compile(r"--|[A-Za-z_][\w.\[\]]*[+-]?=|[A-Za-z_]\w*[.\[][\w.\[\]]*!\Z")
INNER_DASH = re.compile(r"(?<=\w)-(?=\w)")
# Python's replacements for bytes that are not UTF-8
SURROGATE = re.compile("[\ud800-\udfff]")
NEGATION = re.compile(r"no_(?=.)")
COMMENT = re.compile(r"(?:^|\s)#")
# text that begins with one of these must be valid YAML; other text that YAML cannot read is text
YAML_MARKS = tuple("[{\"'!&|>")
OVERRIDE_HINT = "write path=value, path+=item, path-=item or path!"


@dataclass(frozen=True, slots=True)
class Override:
    """One change of the recipe.

    `step_origins` holds the origin of each step of `path`. A reset has no value.
    """

    path: DataPath
    operation: Operation
    source: SourceText
    step_origins: tuple[Origin, ...]
    value: Node | None = None

    @property
    def origin(self) -> Origin:
        """Origin of the whole path within the argument."""
        return replace(self.step_origins[-1], column=self.step_origins[0].column)


class PartialOverridesError(ProblemsFound):
    """Error for arguments of which some are not overrides.

    `overrides` holds the valid ones, `invalid_paths` the paths whose values cannot be read or are
    given twice.
    """

    def __init__(self, problems: Sequence[Problem], overrides: Sequence[Override]) -> None:
        self.overrides = list(overrides)
        self.invalid_paths: set[DataPath] = {problem.path for problem in problems if problem.path}
        super().__init__(problems)


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse the arguments to overrides, numbered from 1 in the order given.

    Accepts `path=value` (the value is YAML), `path+=item`, `path-=item or index`, `path!`, and
    torchtitan's `--path value`, `--path=value`, `--path` and `--section.no_key`, in which dashes
    inside a key stand for underscores. Raises PartialOverridesError with all problems of all
    arguments.
    """
    overrides: list[Override] = []
    problems: list[Problem] = []
    for number, text in enumerate(join_option_values(arguments), 1):
        try:
            overrides.append(
                parse_override(SourceText(f"<override {number}>", text, kind="override"))
            )
        except ProblemsFound as found:
            problems += found.problems
    problems += find_override_problems(overrides)
    if problems:
        raise PartialOverridesError(problems, overrides)
    return overrides


def join_option_values(arguments: Sequence[str]) -> Iterator[str]:
    """Yield one text per override, with `--path` joined to the next argument if it is a value."""
    waiting: str | None = None
    for argument in arguments:
        if waiting is not None and not OVERRIDE_ARGUMENT.match(argument):
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
    """Parse the override in one argument."""
    text = source.text
    dashed = text.startswith(DASHES)
    start = len(DASHES) if dashed else 0
    if not text[start:].strip():
        raise usage_error(source, "the override is empty", 0, len(text))
    if SURROGATE.search(text):
        raise usage_error(source, "the argument is not UTF-8 text", 0, len(text))
    head = re.split(r"[= ]", text, maxsplit=1)[0]
    try:
        steps = scan_path(INNER_DASH.sub("_", head) if dashed else text, start)
    except PathSyntaxError as mistake:
        hint = describe_brackets(text, len(head)) or OVERRIDE_HINT
        raise usage_error(source, mistake.message, mistake.offset, hint=hint) from None
    end = steps[-1].end
    marks = tuple(Origin(source, 1, step.start + 1, step.end + 1) for step in steps)
    path = tuple(step.key for step in steps)
    if path == ("extends",):
        raise usage_error(
            source,
            "extends cannot be changed here",
            start,
            end,
            hint="pass the recipe that extends the intended file",
        )
    if dashed and end == len(text):
        return parse_flag(path, source, marks)
    if dashed and text[end] == " ":
        return Override(
            path, "set", source, marks, read_path_value(path, source, end + 1, marks[-1])
        )
    return parse_operator(source, path, marks, start=start, end=end)


def describe_brackets(text: str, end: int) -> str | None:
    """Return the hint with indexes in brackets, None if no index stands after a dot.

    The path of the override is in the first `end` characters of `text`.
    """
    path = INDEX_AFTER_DOT.sub(r"[\1]", text[:end])
    return None if path == text[:end] else f"write {path}{text[end:]}"


def parse_operator(
    source: SourceText, path: DataPath, marks: tuple[Origin, ...], *, start: int, end: int
) -> Override:
    """Parse an override whose path spans `start` to `end`, followed by an operator."""
    text = source.text
    operator = OPERATOR.match(text, end)
    if operator is None:
        raise usage_error(source, f"expected =, +=, -= or ! after '{text[start:end]}'", end)
    if not operator[0]:
        raise usage_error(
            source,
            f"'{text[start:end]}' has no value",
            start,
            end,
            hint=f"write {text[start:end]}=VALUE",
        )
    if operator[0] != "!":
        return Override(
            path,
            OPERATORS[operator[0]],
            source,
            marks,
            read_path_value(path, source, operator.end(), marks[-1]),
        )
    if operator.end() < len(text):
        raise usage_error(source, "unexpected text after !", operator.end(), len(text))
    return Override(path, "reset", source, marks)


def usage_error(
    source: SourceText,
    message: str,
    start: int,
    end: int | None = None,
    *,
    hint: str = OVERRIDE_HINT,
) -> ProblemsFound:
    """Build a problem about the syntax of an argument, at offsets into it."""
    return problem_error(
        "usage",
        message,
        origin=Origin(source, 1, start + 1, (start + 1 if end is None else end) + 1),
        hint=hint,
    )


def parse_flag(path: DataPath, source: SourceText, step_origins: tuple[Origin, ...]) -> Override:
    """Parse a flag: `--compile.enable` is true, `--compile.no_enable` sets the key to false."""
    *holder, key = path
    negated = isinstance(key, str) and NEGATION.match(key)
    if isinstance(key, str) and negated:
        key = key[negated.end() :]
    return Override(
        (*holder, key),
        "set",
        source,
        step_origins,
        Node(not negated, step_origins[-1], key=step_origins[-1], via="override"),
    )


def read_path_value(path: DataPath, source: SourceText, start: int, key: Origin) -> Node:
    """Read the value that an override gives to `path`.

    An unreadable value is a problem of that path.
    """
    try:
        return read_override_value(source, start, key)
    except ProblemsFound as found:
        raise ProblemsFound(
            [replace(problem, path=(*path, *problem.path)) for problem in found.problems]
        ) from None


def read_override_value(source: SourceText, start: int, key: Origin) -> Node:
    """Read the YAML value from offset `start` on.

    Text that YAML cannot read, or would truncate at a `#`, is used literally.
    """
    text = source.text[start:]
    if not text.strip():
        hint = "write null for no value, '\"\"' for empty text, or path! for the default"
        raise usage_error(
            source, f"no value after '{source.text.rstrip()}'", 0, len(source.text), hint=hint
        )
    plain_text = not text.lstrip().startswith(YAML_MARKS)
    if plain_text and COMMENT.search(text):
        return to_text_node(source, start, key)
    try:
        return replace(mark_as_override(read_value_text(source, start=start)), key=key)
    except ProblemsFound as found:
        if plain_text and all(problem.code == "syntax" for problem in found.problems):
            return to_text_node(source, start, key)
        raise


def to_text_node(source: SourceText, start: int, key: Origin | None) -> Node:
    """Return the rest of the argument from `start` on as text."""
    text = source.text[start:].strip()
    column = source.text.index(text, start) + 1
    return Node(
        text, Origin(source, 1, column, column + len(text.split("\n")[0])), key=key, via="override"
    )


def mark_as_override(node: Node) -> Node:
    """Return the node and all nodes below it, marked as given on the command line."""
    value = node.value
    if isinstance(value, dict):
        value = {key: mark_as_override(child) for key, child in value.items()}
    elif isinstance(value, list):
        value = [mark_as_override(child) for child in value]
    return replace(node, value=value, via="override")


def find_override_problems(overrides: Sequence[Override]) -> Iterator[Problem]:
    """Yield problems of paths given twice and of overrides that undo an earlier one."""
    for later, earlier in (
        (later, earlier) for index, later in enumerate(overrides) for earlier in overrides[:index]
    ):
        related = (RelatedLocation(earlier.origin, "first given here", earlier.path),)
        adds = {earlier.operation, later.operation} <= {"append", "remove"}
        inside = (
            len(earlier.path) > len(later.path) and earlier.path[: len(later.path)] == later.path
        )
        name = format_path(later.path)
        if earlier.path == later.path and not adds:
            message = f"'{name}' is given twice"
            yield Problem(
                "usage",
                message,
                later.path,
                later.origin,
                hint="keep one of the two",
                related=related,
            )
        elif inside and later.operation in ("set", "reset"):
            message = f"'{name}' would undo '{format_path(earlier.path)}', given before it"
            yield Problem(
                "usage",
                message,
                later.path,
                later.origin,
                hint="give the longer path last",
                related=related,
            )
