"""Problems of a recipe as data; diagnostics.py renders their text."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from titanrun.config.control_characters import escape_line, escape_lines
from titanrun.config.exit_codes import (
    EXIT_CHECKPOINT,
    EXIT_DATA,
    EXIT_INTERNAL,
    EXIT_NO_QUORUM,
    EXIT_USAGE,
)
from titanrun.config.redaction import (
    find_assigned_secret,
    redact,
    redact_data,
    redact_url_credentials,
    star_out_assigned_secrets,
    star_out_url_credentials,
)

ProblemCode = Literal[
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
    "slow",
    "not-built",
    "deprecated",
    "version",
    "cycle",
    "interpolation",
    "usage",
    "data",
    "checkpoint",
    "quorum",
    "internal",
]

EXIT_CODES: dict[ProblemCode, int] = {
    "data": EXIT_DATA,
    "checkpoint": EXIT_CHECKPOINT,
    "quorum": EXIT_NO_QUORUM,
    "internal": EXIT_INTERNAL,
}

DataPath = tuple[str | int, ...]
SECRET_HINT = "a recipe holds no secrets: set it as an environment variable where the run starts"


def to_shown_text(text: str) -> str:
    """Return text of a message without URL credentials, and with control characters as escapes."""
    return escape_lines(redact_url_credentials(text))


@lru_cache(maxsize=8)
def get_text_lines(text: str) -> list[str]:
    """Return the lines of a text; each problem of a long file needs one of them."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


@dataclass(frozen=True, slots=True, eq=False)
class SourceText:
    """Source of values: a file as the user named it, or one command-line override."""

    name: str
    text: str
    kind: Literal["file", "override"] = "file"
    included_from: "Origin | None" = None
    hidden_origins: "list[Origin]" = field(default_factory=list, repr=False)
    """Origins of secrets, which no message shows."""
    is_file: bool = True
    """Whether `name` is the path of a file, to which what it names may be relative."""

    def get_line(self, number: int) -> str:
        """Return line `number`, counted from 1, without its line break."""
        lines = get_text_lines(self.text)
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def get_redacted_line(self, number: int) -> str:
        """Return a line for messages: secrets and URL credentials are replaced by stars.

        All other characters keep their columns.
        """
        # before the others, which may hide the key that tells what its value is
        text = star_out_assigned_secrets(star_out_url_credentials(self.get_line(number)))
        for place in self.hidden_origins:
            if place.line == number:
                start, end = place.column - 1, max(place.column, place.end_column - 1)
                text = text[:start] + "*" * len(text[start:end]) + text[end:]
        return text


@dataclass(frozen=True, slots=True)
class Origin:
    """Location of a key or value.

    Line and columns count code points from 1. `end_column` is exclusive.
    """

    source: SourceText
    line: int
    column: int
    end_column: int

    def __str__(self) -> str:
        if self.source.kind == "override":
            return escape_line(self.source.name)
        return f"{escape_line(self.source.name)}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class RelatedLocation:
    """Another location that a problem involves, with a description."""

    origin: Origin | None
    message: str
    path: DataPath = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", to_shown_text(self.message))


@dataclass(frozen=True, slots=True)
class Fix:
    """Machine-applicable edit: the replacement for the text at `origin`, which is in a file."""

    origin: Origin
    replacement: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One diagnostic.

    `message` and `hint` are short, lower case, without a full stop. URLs in them never contain
    credentials. `is_absolute` says that `path` begins at the recipe's root, whoever raised it.
    `listed` are lines to show below the message.
    """

    code: ProblemCode
    message: str
    path: DataPath = ()
    origin: Origin | None = None
    severity: Literal["error", "warning"] = "error"
    hint: str | None = None
    suggestion: str | None = None
    rule: str | None = None
    got: object = None
    expected: str | None = None
    related: tuple[RelatedLocation, ...] = field(default=())
    fix: Fix | None = None
    is_absolute: bool = False
    listed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", to_shown_text(self.message))
        object.__setattr__(self, "listed", tuple(map(to_shown_text, self.listed)))
        if self.hint is not None:
            object.__setattr__(self, "hint", to_shown_text(self.hint))
        if self.origin is not None:
            self._hide_secret(self.origin)

    def _hide_secret(self, origin: Origin) -> None:
        """Replace the value of a secret that a reader quotes, such as one that is not in quotes."""
        parts = find_assigned_secret(origin.source.get_line(origin.line), origin.column)
        message = redact(self.message, parts)
        if message != self.message:
            path = tuple(redact_data(step, parts) for step in self.path)
            changed = {"message": message, "path": path, "hint": SECRET_HINT, "suggestion": None}
            for name, value in {**changed, "got": None, "fix": None}.items():
                object.__setattr__(self, name, value)

    @property
    def label(self) -> str:
        """The code as shown: `conflict/heads-divide-over-tp` for the problem of a rule."""
        return f"{self.code}/{self.rule}" if self.rule else self.code

    @property
    def exit_code(self) -> int:
        """Process exit code for this problem."""
        return EXIT_CODES.get(self.code, EXIT_USAGE)


class ProblemsFound(Exception):  # noqa: N818 - public name, reads as what happened
    """Raised if work cannot continue; carries every problem found so far."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the problems, which the text does not contain."""
        return type(self), (self.problems,), self.__dict__

    @property
    def exit_code(self) -> int:
        """Exit code of the first error."""
        return next(
            (problem.exit_code for problem in self.problems if problem.severity == "error"),
            EXIT_USAGE,
        )


def problem_error(
    code: ProblemCode,
    message: str,
    *,
    path: DataPath = (),
    origin: Origin | None = None,
    hint: str | None = None,
    is_absolute: bool = False,
    listed: Iterable[str] = (),
) -> ProblemsFound:
    """Build an error with one problem, for the caller to raise."""
    problem = Problem(code, message, path, origin, hint=hint, is_absolute=is_absolute)
    return ProblemsFound([replace(problem, listed=tuple(listed))])
