"""Problems as text for people, and as json, github and sarif for programs."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Literal

from titanrun.config.emit import flow
from titanrun.config.masking import masked_addresses
from titanrun.config.problems import Fix, Origin, Problem, Related
from titanrun.config.tree import path_text

Format = Literal["text", "json", "github", "sarif"]
LONGEST_VALUE = 60
LONGEST_LINE = 160
STYLES = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "place": "\x1b[34m",
    "bold": "\x1b[1m",
    "off": "\x1b[0m",
}


def render(
    problems: Sequence[Problem],
    *,
    format: Format = "text",
    colour: bool = False,
    columns: int | None = None,
) -> str:
    """All problems in file order, in one of the four formats."""
    ordered = in_file_order(problems)
    if format == "json":
        return "".join(
            json.dumps(as_data(problem), ensure_ascii=False) + "\n" for problem in ordered
        )
    if format == "github":
        return "".join(github_line(problem) + "\n" for problem in ordered)
    if format == "sarif":
        return json.dumps(as_sarif(ordered), indent=2, ensure_ascii=False) + "\n"
    return render_text(ordered, colour=colour, columns=columns)


def render_text(
    problems: Iterable[Problem], *, colour: bool = False, columns: int | None = None
) -> str:
    """The problems for a terminal, each with its source line and a caret, separated by empty lines.

    In `columns` columns a help that does not fit beside its caret stands below it.
    """
    style = STYLES if colour else dict.fromkeys(STYLES, "")
    return "\n".join(block(problem, style, columns) for problem in problems)


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """By source in the order met, then by line and column; problems without an origin last."""
    met: dict[int, int] = {}
    for problem in problems:
        if problem.origin is not None:
            met.setdefault(id(problem.origin.source), len(met))

    def place(problem: Problem) -> tuple[bool, bool, int, int, int]:
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

    return sorted(problems, key=place)


def block(problem: Problem, style: dict[str, str], columns: int | None = None) -> str:
    """One problem as a block of lines."""
    head = f"{problem.severity}[{problem.label}]"
    title = "\n".join(folded(f"{head}: {problem.message}", columns)).removeprefix(head)
    lines = [f"{style[problem.severity]}{head}{style['off']}{style['bold']}{title}{style['off']}"]
    origin = problem.origin
    where = f"  ({path_text(problem.path)})" if problem.path else ""
    if origin is None:
        lines += [f"  --> {path_text(problem.path)}"] if problem.path else []
        lines += footnote("help", problem.help, columns) if problem.help else []
    else:
        gutter = " " * len(str(origin.line))
        lines.append(f"{gutter}{style['place']}-->{style['off']} {origin}{where}")
        below = (
            problem.help is not None
            and columns is not None
            and caret_column(origin) + len(problem.help) > columns
        )
        lines += snippet(origin, None if below else problem.help, style, style[problem.severity])
        lines += footnote("help", str(problem.help), columns) if below else []
    for related in problem.related:
        lines += related_lines(related, columns)
    lines += [f"  = note: included from {place}" for place in includes(origin)]
    return "\n".join(lines) + "\n"


def related_lines(related: Related, columns: int | None) -> list[str]:
    """What stands at a further place. One that nobody wrote has its path only, which the message may begin with."""
    path = path_text(related.path)
    if related.origin is None and related.message.startswith(f"{path} "):
        return folded(f"  = {related.message}", columns)
    return footnote(str(related.origin or path), related.message, columns)


def footnote(head: str, text: str, columns: int | None) -> list[str]:
    """A line below a problem, continued below its text where it is longer than a line."""
    return folded(f"  = {head}: {text}", columns)


def folded(line: str, columns: int | None) -> list[str]:
    """A line as the lines that fit."""
    return (
        [line]
        if columns is None
        else wrap(
            line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    )


def caret_column(origin: Origin) -> int:
    """How many columns stand before the help beside a caret."""
    text = origin.source.line(origin.line)
    return len(f"{origin.line} | ^ help: ") + width(text[: origin.end_column - 1])


def snippet(origin: Origin, help: str | None, style: dict[str, str], accent: str) -> list[str]:
    """The source line with a caret under the marked columns, and the help beside the caret."""
    text = origin.source.shown_line(origin.line)
    gutter = " " * len(str(origin.line))
    bar = f"{style['place']}{gutter} |{style['off']}"
    if len(text) > LONGEST_LINE or not text.strip():
        return [f"{bar}", f"{bar} help: {help}"] if help else []
    shown = "".join(
        " " if character == "\t" else character if character.isprintable() else "\ufffd"
        for character in text
    )
    marked = text[origin.column - 1 : origin.end_column - 1]
    caret = (
        " " * width(text[: origin.column - 1]) + accent + "^" * max(1, width(marked)) + style["off"]
    )
    after = f" help: {help}" if help else ""
    return [bar, f"{style['place']}{origin.line} |{style['off']} {shown}", f"{bar} {caret}{after}"]


def width(text: str) -> int:
    """Columns that text takes on a terminal: wide characters two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def includes(origin: Origin | None) -> list[str]:
    """The chain of files that included the origin's file, nearest first, as `file:line`."""
    chain = []
    while origin is not None and origin.source.included_from is not None:
        origin = origin.source.included_from
        chain.append(f"{origin.source.name}:{origin.line}")
    return chain


def shorten(value: object) -> str:
    """A value as it is shown in a message: text in single quotes, lists and mappings as in YAML, cut after 60 characters."""
    names = {None: "null", True: "true", False: "false"}
    if isinstance(value, list | tuple | dict):
        text = flow(value)
    else:
        text = (
            names[value]
            if value is None or isinstance(value, bool)
            else f"'{value}'"
            if isinstance(value, str)
            else str(value)
        )
    text = masked_addresses(text)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def as_data(problem: Problem) -> dict[str, object]:
    """One problem as a JSON object."""
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
        "message": problem.message,
        "file": origin.source.name if origin else None,
        "line": origin.line if origin else None,
        "col": origin.column if origin else None,
        "end_col": origin.end_column if origin else None,
        "path": path_text(problem.path),
        "got": None if problem.got is None else shorten(problem.got),
        "expected": problem.expected,
        "suggestion": problem.suggestion,
        "help": problem.help,
        "related": related,
        "fix": None if problem.fix is None else fix_data(problem.fix),
    }


def fix_data(fix: Fix) -> dict[str, object]:
    """An edit as a JSON object: the text from `col` up to `end_col` becomes `replacement`."""
    origin = fix.origin
    place = {
        "file": origin.source.name,
        "line": origin.line,
        "col": origin.column,
        "end_col": origin.end_column,
    }
    return {**place, "replacement": fix.replacement}


def github_line(problem: Problem) -> str:
    """One problem as a workflow command of GitHub Actions."""
    place = ""
    if problem.origin is not None:
        origin = problem.origin
        place = f" file={origin.source.name},line={origin.line},col={origin.column},endColumn={origin.end_column}"
    text = problem.message + (f" (help: {problem.help})" if problem.help else "")
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{problem.severity}{place}{',' if place else ' '}title={problem.label}::{escaped}"


def as_sarif(problems: Sequence[Problem]) -> dict[str, object]:
    """All problems as one SARIF 2.1.0 log."""
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "titanrun"}},
                "results": [sarif_result(problem) for problem in problems],
            }
        ],
    }


def sarif_result(problem: Problem) -> dict[str, object]:
    """One problem as a SARIF result."""
    text = problem.message + (f"; {problem.help}" if problem.help else "")
    result: dict[str, object] = {
        "ruleId": problem.label,
        "level": problem.severity,
        "message": {"text": text},
    }
    if problem.origin is not None:
        origin = problem.origin
        result["locations"] = [{"physicalLocation": sarif_place(origin)}]
    if problem.fix is not None:
        place = sarif_place(problem.fix.origin)
        replacement = {
            "deletedRegion": place["region"],
            "insertedContent": {"text": problem.fix.replacement},
        }
        result["fixes"] = [
            {
                "artifactChanges": [
                    {"artifactLocation": place["artifactLocation"], "replacements": [replacement]}
                ]
            }
        ]
    return result


def sarif_place(origin: Origin) -> dict[str, object]:
    """A place as SARIF says it."""
    region = {
        "startLine": origin.line,
        "startColumn": origin.column,
        "endColumn": origin.end_column,
    }
    return {"artifactLocation": {"uri": origin.source.name}, "region": region}
