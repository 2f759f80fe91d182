"""Output formats of problems: text for people, JSON, GitHub and SARIF for programs."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Literal

from titanrun.config.control_characters import escape_line
from titanrun.config.limits import truncate_for_message
from titanrun.config.problems import Fix, Origin, Problem, RelatedLocation
from titanrun.config.redaction import redact_url_credentials, star_out_assigned_secrets
from titanrun.config.sarif import DocumentationSite, build_sarif_log
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import Node, format_path

ProblemFormat = Literal["text", "json", "github", "sarif"]
MAX_VALUE_LENGTH = 60
MAX_LINE_LENGTH = 160
STYLES = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "place": "\x1b[34m",
    "bold": "\x1b[1m",
    "off": "\x1b[0m",
}


def render_problems(
    problems: Sequence[Problem],
    *,
    output_format: ProblemFormat = "text",
    use_color: bool = False,
    columns: int | None = None,
    site: DocumentationSite | None = None,
) -> str:
    """Render all problems in file order, in one of the four formats.

    `site` is the documentation that a SARIF log links to.
    """
    ordered = sort_problems(problems)
    if output_format == "json":
        return "".join(
            json.dumps(problem_to_dict(problem), ensure_ascii=False) + "\n" for problem in ordered
        )
    if output_format == "github":
        return "".join(format_github_line(problem) + "\n" for problem in ordered)
    if output_format == "sarif":
        log = build_sarif_log(ordered, Path.cwd(), site)
        return json.dumps(log, indent=2, ensure_ascii=False) + "\n"
    return render_problems_as_text(ordered, use_color=use_color, columns=columns)


def render_problems_as_text(
    problems: Iterable[Problem], *, use_color: bool = False, columns: int | None = None
) -> str:
    """Render the problems for a terminal, each with its source line and a caret.

    Problems are separated by empty lines. A help text that does not fit into `columns` columns next
    to its caret is printed below it.
    """
    style = STYLES if use_color else dict.fromkeys(STYLES, "")
    return "\n".join(format_problem(problem, style, columns) for problem in problems)


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by source in order of appearance, then line and column; without origin last."""
    met: dict[int, int] = {}
    for problem in problems:
        if problem.origin is not None:
            met.setdefault(id(problem.origin.source), len(met))

    def get_sort_key(problem: Problem) -> tuple[bool, bool, int, int, int]:
        """Return the sort key of a problem."""
        origin = problem.origin
        if origin is None:
            return True, True, 0, 0, 0
        override = origin.source.kind == "override"
        number = (
            int("".join(filter(str.isdigit, origin.source.name)) or 0)
            if override
            else met[id(origin.source)]
        )
        return False, override, number, origin.line, origin.column

    return sorted(problems, key=get_sort_key)


def format_problem(problem: Problem, style: dict[str, str], columns: int | None = None) -> str:
    """Format one problem as a block of lines. A line break in a value stays within its line."""
    head = f"{problem.severity}[{problem.label}]"
    told, hint = escape_line(problem.message), problem.hint and escape_line(problem.hint)
    title = "\n".join(wrap_message_line(f"{head}: {told}", columns)).removeprefix(head)
    lines = [f"{style[problem.severity]}{head}{style['off']}{style['bold']}{title}{style['off']}"]
    for line in problem.listed:
        lines += wrap_message_line(f"  {escape_line(line)}", columns)
    origin = problem.origin
    where = f"  ({escape_line(format_path(problem.path))})" if problem.path else ""
    if origin is None:
        lines += [f"  --> {escape_line(format_path(problem.path))}"] if problem.path else []
        lines += format_footnote("help", hint, columns) if hint else []
    else:
        gutter = " " * len(str(origin.line))
        lines.append(f"{gutter}{style['place']}-->{style['off']} {origin}{where}")
        below = (
            hint is not None
            and columns is not None
            and compute_caret_column(origin) + len(hint) > columns
        )
        lines += format_snippet(origin, None if below else hint, style, style[problem.severity])
        lines += format_footnote("help", str(hint), columns) if below else []
    for related in problem.related:
        lines += format_related(related, columns)
    lines += [f"  = note: included from {place}" for place in get_include_chain(origin)]
    return "\n".join(lines) + "\n"


def format_related(related: RelatedLocation, columns: int | None) -> list[str]:
    """Format a related location. One without an origin has its path only, an override its text.

    The message may begin with that path.
    """
    path = escape_line(format_path(related.path))
    if related.origin is None and related.message.startswith(f"{path} "):
        return wrap_message_line(f"  = {escape_line(related.message)}", columns)
    place = str(related.origin or path)
    if related.origin is not None and related.origin.source.kind == "override":
        # a problem shows its own line, but not that of a related location
        text = related.origin.source.get_redacted_line(related.origin.line)
        place = escape_line(truncate_for_message(text)) or place
    return format_footnote(place, related.message, columns)


def format_footnote(head: str, text: str, columns: int | None) -> list[str]:
    """Format a line below a problem, with continuation lines aligned below its text."""
    return wrap_message_line(f"  = {head}: {escape_line(text)}", columns)


def wrap_message_line(line: str, columns: int | None) -> list[str]:
    """Wrap a line to the available columns."""
    return (
        [line]
        if columns is None
        else wrap(
            line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    )


def compute_caret_column(origin: Origin) -> int:
    """Return the number of columns before the help next to a caret."""
    text = origin.source.get_line(origin.line)
    return len(f"{origin.line} | ^ help: ") + compute_display_width(text[: origin.end_column - 1])


def format_snippet(
    origin: Origin, hint: str | None, style: dict[str, str], accent: str
) -> list[str]:
    """Format the source line, a caret under the marked columns, and the help next to it."""
    text = origin.source.get_redacted_line(origin.line)
    gutter = " " * len(str(origin.line))
    bar = f"{style['place']}{gutter} |{style['off']}"
    if len(text) > MAX_LINE_LENGTH or not text.strip():
        return [f"{bar}", f"{bar} help: {hint}"] if hint else []
    shown = "".join(
        " " if character == "\t" else character if character.isprintable() else "\ufffd"
        for character in text
    )
    marked = text[origin.column - 1 : origin.end_column - 1]
    caret = (
        " " * compute_display_width(text[: origin.column - 1])
        + accent
        + "^" * max(1, compute_display_width(marked))
        + style["off"]
    )
    after = f" help: {hint}" if hint else ""
    return [bar, f"{style['place']}{origin.line} |{style['off']} {shown}", f"{bar} {caret}{after}"]


def compute_display_width(text: str) -> int:
    """Return the terminal columns of text: 2 for wide characters, 0 for combining ones."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def get_include_chain(origin: Origin | None) -> list[str]:
    """Return the chain of files that include the origin's file, nearest first, as `file:line`."""
    chain = []
    while origin is not None and origin.source.included_from is not None:
        origin = origin.source.included_from
        chain.append(f"{escape_line(origin.source.name)}:{origin.line}")
    return chain


def format_short_value(value: object) -> str:
    """Format a value for a message: text in single quotes, lists and mappings as YAML.

    The result is truncated after 60 characters.
    """
    names = {None: "null", True: "true", False: "false"}
    if isinstance(value, list | tuple | dict):
        text = to_flow_yaml(value)
    else:
        text = (
            names[value]
            if value is None or isinstance(value, bool)
            else f"'{value}'"
            if isinstance(value, str)
            else str(value)
        )
    text = escape_line(star_out_assigned_secrets(redact_url_credentials(text)))
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."


def format_value_kind(node: Node) -> str:
    """Return the kind of a value as messages call it."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    return format_short_value(node.value)


def problem_to_dict(problem: Problem) -> dict[str, object]:
    """Convert one problem to a JSON object."""
    origin = problem.origin
    related = [
        {
            "file": item.origin.source.name if item.origin else None,
            "line": item.origin.line if item.origin else None,
            "message": item.message,
        }
        for item in problem.related
    ]
    return {
        "code": problem.code,
        "rule": problem.rule,
        "severity": problem.severity,
        "message": "\n".join([problem.message, *(f"  {line}" for line in problem.listed)]),
        "file": origin.source.name if origin else None,
        "line": origin.line if origin else None,
        "col": origin.column if origin else None,
        "end_col": origin.end_column if origin else None,
        "path": format_path(problem.path),
        "got": None if problem.got is None else format_short_value(problem.got),
        "expected": problem.expected,
        "suggestion": problem.suggestion,
        "help": problem.hint,
        "related": related,
        "fix": None if problem.fix is None else fix_to_dict(problem.fix),
    }


def fix_to_dict(fix: Fix) -> dict[str, object]:
    """Convert a fix to a JSON object: the text from `col` to `end_col` becomes `replacement`."""
    origin = fix.origin
    place = {
        "file": origin.source.name,
        "line": origin.line,
        "col": origin.column,
        "end_col": origin.end_column,
    }
    return {**place, "replacement": fix.replacement}


def format_github_line(problem: Problem) -> str:
    """Format one problem as a workflow command of GitHub Actions."""
    place = ""
    if problem.origin is not None:
        origin = problem.origin
        place = (
            f" file={escape_line(origin.source.name)},line={origin.line},col={origin.column}"
            f",endColumn={origin.end_column}"
        )
    text = problem.message + (f" (help: {problem.hint})" if problem.hint else "")
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{problem.severity}{place}{',' if place else ' '}title={problem.label}::{escaped}"
