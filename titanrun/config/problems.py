"""What is wrong with a recipe: one problem is data, its text is made in render.py."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from titanrun.config.masking import masked_addresses, starred_addresses

Code = Literal[
    "syntax",
    "encoding",
    "empty",
    "file",
    "tag",
    "limit",
    "duplicate-key",
    "unknown-key",
    "unknown-name",
    "missing-key",
    "wrong-type",
    "ambiguous-number",
    "out-of-range",
    "conflict",
    "no-effect",
    "not-built",
    "deprecated",
    "version",
    "cycle",
    "interpolation",
    "usage",
    "data",
    "checkpoint",
    "internal",
]

EXIT_RECIPE = 2
EXIT_OF_CODE: dict[Code, int] = {"data": 3, "checkpoint": 4, "internal": 70}

DataPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SourceText:
    """One text that values come from: a file as the user named it, or one command-line override."""

    name: str
    text: str
    kind: Literal["file", "override"] = "file"
    included_from: "Origin | None" = None
    hidden: "list[Origin]" = field(default_factory=list, repr=False)
    """Places of secrets, which no message shows."""

    def line(self, number: int) -> str:
        """Line `number`, counted from 1, without its line break."""
        lines = self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def shown_line(self, number: int) -> str:
        """The line as messages show it: secrets, and who asks in an address, as stars, everything else in its column."""
        text = self.line(number)
        for place in self.hidden:
            if place.line == number:
                start, end = place.column - 1, max(place.column, place.end_column - 1)
                text = text[:start] + "*" * len(text[start:end]) + text[end:]
        return starred_addresses(text)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a key or value stands: line and columns count code points from 1, `end_column` is exclusive."""

    source: SourceText
    line: int
    column: int
    end_column: int

    def __str__(self) -> str:
        if self.source.kind == "override":
            return self.source.name
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Related:
    """A further place that a problem involves, with what stands there."""

    origin: Origin | None
    message: str
    path: DataPath = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", masked_addresses(self.message))


@dataclass(frozen=True, slots=True)
class Fix:
    """A machine-safe edit: what belongs in the place of the text at `origin`, which is in a file."""

    origin: Origin
    replacement: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One diagnostic. `message` and `help` are short, lower case, without a full stop; an address in them never says who asks."""

    code: Code
    message: str
    path: DataPath = ()
    origin: Origin | None = None
    severity: Literal["error", "warning"] = "error"
    help: str | None = None
    suggestion: str | None = None
    rule: str | None = None
    got: object = None
    expected: str | None = None
    related: tuple[Related, ...] = field(default=())
    fix: Fix | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", masked_addresses(self.message))
        if self.help is not None:
            object.__setattr__(self, "help", masked_addresses(self.help))

    @property
    def label(self) -> str:
        """The code as it is shown: `conflict/heads-divide-over-tp` for a rule's problem."""
        return f"{self.code}/{self.rule}" if self.rule else self.code

    @property
    def exit_code(self) -> int:
        """The process exit code that this problem asks for."""
        return EXIT_OF_CODE.get(self.code, EXIT_RECIPE)


class ProblemsFound(Exception):
    """Raised where work cannot go on; carries every problem found so far."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))

    @property
    def exit_code(self) -> int:
        """The exit code of the first error."""
        return next(
            (problem.exit_code for problem in self.problems if problem.severity == "error"),
            EXIT_RECIPE,
        )


def fail(
    code: Code,
    message: str,
    *,
    path: DataPath = (),
    origin: Origin | None = None,
    help: str | None = None,
) -> ProblemsFound:
    """One problem, ready to be raised."""
    return ProblemsFound([Problem(code, message, path=path, origin=origin, help=help)])
