"""References in recipe texts: `${env:NAME}`, `${env:NAME,default}` and `${section.key}`."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.config.problems import DataPath, Origin, Problem, ProblemCode, RelatedLocation
from titanrun.config.tree import Node, iter_nodes

REFERENCE_START = "${"
ENVIRONMENT_PREFIX = "env:"
# an escape, a reference, or an unterminated reference, after which no reference is closed: to look
# for one again and again would take a time that grows with the square of the length
REFERENCE_OR_ESCAPE = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<inner>[^}]*)\}|(?P<open>\$\{)[^}]*\Z")
REFERENCE_HINT = "write ${section.key}, ${env:NAME} or ${env:NAME,default}; $${ is the text ${"

# a variable as in a shell, with a default or without, or as OmegaConf and others write it
FOREIGN_VARIABLE = re.compile(
    r"(?:(?:oc\.)?env[:.](?P<named>\w+)|(?P<name>[A-Z_][A-Z0-9_]*))"
    r"(?:(?:,|:?[-=])(?P<default>[^{}]*))?"
)


@dataclass(frozen=True, slots=True)
class ValueReference:
    """One `${...}` in the value at `path`, with its offsets and the text between the braces."""

    node: Node
    path: DataPath
    start: int
    end: int
    inner: str

    @property
    def origin(self) -> Origin:
        """The columns of the reference if they can be located, else the whole value.

        They can be located if the value is written literally on one line.
        """
        origin, text = self.node.origin, str(self.node.value)
        line = origin.source.get_line(origin.line)
        for quote in (0, 1):
            begin = origin.column - 1 + quote
            if line[begin : begin + len(text)] == text:
                return replace(
                    origin, column=begin + self.start + 1, end_column=begin + self.end + 1
                )
        return origin


class UnresolvedReferenceError(Exception):
    """A reference without a value.

    `problem` holds the reason, unless another problem covers it.
    """

    def __init__(self, problem: Problem | None = None) -> None:
        self.problem = problem
        super().__init__()


def split_references(node: Node, path: DataPath) -> Iterator[str | ValueReference]:
    """Yield the text of `node` as literal pieces and references."""
    text, position = str(node.value), 0
    for found in REFERENCE_OR_ESCAPE.finditer(text):
        if found.start() > position:
            yield text[position : found.start()]
        position = found.end()
        if found["escape"]:
            yield REFERENCE_START
            continue
        end = found.end("open" if found["open"] else 0)
        reference = ValueReference(node, path, found.start(), end, found["inner"] or "")
        if found["open"]:
            raise reference_error(reference, "'${' is never closed")
        yield reference
    if position < len(text):
        yield text[position:]


def parse_reference_path(reference: ValueReference) -> DataPath:
    """Parse the path that a reference names."""
    inner = reference.inner
    if not inner:
        raise reference_error(reference, "the reference is empty")
    meant = correct_reference(inner)
    hint = REFERENCE_HINT if meant is None else f"write {meant}"
    if re.match(r"\w+:", inner):
        message = f"unknown reference type '{inner.partition(':')[0]}:'"
        raise reference_error(reference, message, hint=hint)
    try:
        return parse_path(inner)
    except PathSyntaxError:
        raise reference_error(
            reference, f"'{inner}' is not a path, and expressions are not supported", hint=hint
        ) from None


def reference_error(
    reference: ValueReference,
    message: str,
    *,
    code: ProblemCode = "interpolation",
    hint: str | None = REFERENCE_HINT,
    suggestion: str | None = None,
    related: tuple[RelatedLocation, ...] = (),
) -> UnresolvedReferenceError:
    """Build an error at the location of a reference."""
    problem = Problem(
        code,
        message,
        reference.path,
        reference.origin,
        hint=hint,
        suggestion=suggestion,
        related=related,
    )
    return UnresolvedReferenceError(problem)


def correct_reference(inner: str) -> str | None:
    """Return the reference to an environment variable that another tool or a shell writes so."""
    found = FOREIGN_VARIABLE.fullmatch(inner.strip())
    if found is None:
        return None
    name, default = found["named"] or found["name"], found["default"]
    return f"${{{ENVIRONMENT_PREFIX}{name}{'' if default is None else f',{default}'}}}"


def correct_references(text: str) -> str:
    """Return a text in which references to environment variables have titanrun's form."""

    def correct(found: re.Match[str]) -> str:
        return correct_reference(found["inner"] or "") or found[0]

    return REFERENCE_OR_ESCAPE.sub(correct, text)


def find_variables(root: Node, is_secret: Callable[[DataPath], bool]) -> dict[DataPath, list[str]]:
    """Return the names of the environment variables that each value outside of secrets reads."""
    found: dict[DataPath, list[str]] = {}
    for path, node in iter_nodes(root):
        if isinstance(node.value, str) and not is_secret(path):
            inner = (match["inner"] for match in REFERENCE_OR_ESCAPE.finditer(node.value))
            names = [
                text.removeprefix(ENVIRONMENT_PREFIX).partition(",")[0]
                for text in inner
                if text is not None and text.startswith(ENVIRONMENT_PREFIX)
            ]
            if names:
                found[path] = names
    return found
