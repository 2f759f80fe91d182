"""Conversion between positions and problems of titanrun and those of the Language Server Protocol.

Lines and columns of an Origin count code points from 1. The protocol counts lines from 0, and
columns in the unit that client and server have agreed on.
"""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsprotocol import types

from titanrun.config.problems import Origin, Problem
from titanrun.config.sarif import DocumentationSite
from titanrun.config.tree import format_path
from titanrun.recipe.editing.completions import Completion
from titanrun.recipe.editing.definitions import Target
from titanrun.recipe.editing.examiner import Document
from titanrun.recipe.editing.hover import Hover

# line ends of the protocol; str.splitlines knows more
LINE_BREAK = re.compile(r"\r\n|\n|\r")
SOURCE = "titanrun"
UNIT_BYTES = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
COMPLETION_KINDS = {
    "key": types.CompletionItemKind.Property,
    "section": types.CompletionItemKind.Module,
    "value": types.CompletionItemKind.Value,
    "component": types.CompletionItemKind.Class,
    "reference": types.CompletionItemKind.Reference,
    "file": types.CompletionItemKind.File,
}


class TextLines:
    """Lines of one text, with conversion of columns to the unit of the client."""

    def __init__(self, text: str, encoding: str) -> None:
        """Split `text`; `encoding` is utf-8, utf-16 or utf-32."""
        breaks = list(LINE_BREAK.finditer(text))
        self.text = text
        self.starts = [0, *(found.end() for found in breaks)]
        self.ends = [*(found.start() for found in breaks), len(text)]
        self.codec, self.unit = UNIT_BYTES[encoding]

    def get_line(self, number: int) -> str:
        """Return line `number`, from 0, without its end; empty beyond the last one."""
        is_inside = 0 <= number < len(self.starts)
        return self.text[self.starts[number] : self.ends[number]] if is_inside else ""

    def to_client_column(self, line: int, column: int) -> int:
        """Return code points of a line in the unit of the client; both from 0."""
        text = self.get_line(line)[:column]
        return len(text.encode(self.codec, "surrogatepass")) // self.unit

    def to_position(self, line: int, column: int) -> types.Position:
        """Return the position of a line and column that count from 1."""
        return types.Position(line - 1, self.to_client_column(line - 1, column - 1))

    def to_line_and_column(self, position: types.Position) -> tuple[int, int]:
        """Return line and column from 1 of a position of the client."""
        encoded = self.get_line(position.line).encode(self.codec, "surrogatepass")
        before = encoded[: position.character * self.unit].decode(self.codec, "ignore")
        return position.line + 1, len(before) + 1

    def to_offset(self, position: types.Position) -> int:
        """Return the index into the text of a position of the client."""
        line, column = self.to_line_and_column(position)
        if line > len(self.starts):
            return len(self.text)
        return min(self.starts[line - 1] + column - 1, self.ends[line - 1])

    def to_position_at(self, offset: int) -> types.Position:
        """Return the position of an index into the text."""
        line = max(number for number, start in enumerate(self.starts) if start <= offset)
        return self.to_position(line + 1, offset - self.starts[line] + 1)

    def to_range(self, line: int, column: int, end_column: int) -> types.Range:
        """Return the range of columns of one line, all from 1."""
        return types.Range(self.to_position(line, column), self.to_position(line, end_column))


def to_path(uri: str) -> str | None:
    """Return the path of a `file:` URI, or None for other URIs."""
    parts = urlsplit(uri)
    return (
        unquote(parts.path)
        if parts.scheme == "file" and parts.netloc in ("", "localhost")
        else None
    )


def to_uri(path: str) -> str:
    """Return the `file:` URI of a path."""
    return Path(path).absolute().as_uri()


def to_origin_range(origin: Origin, encoding: str) -> types.Range:
    """Return the range of an origin in a file."""
    lines = TextLines(origin.source.text, encoding)
    return lines.to_range(origin.line, origin.column, max(origin.end_column, origin.column))


def to_diagnostic(
    problem: Problem, document: Document, encoding: str, site: DocumentationSite | None = None
) -> tuple[str, types.Diagnostic]:
    """Return a problem as a diagnostic, and the path of the file that it belongs to.

    A problem without a place in a file is shown on the first line of the document. Its code links
    to the page of `site` that explains it.
    """
    origin = problem.origin
    is_placed = origin is not None and origin.source.kind == "file"
    lines = TextLines(document.text, encoding)
    where = lines.to_range(1, 1, len(lines.get_line(0)) + 1)
    path = document.path
    if origin is not None and is_placed:
        where, path = to_origin_range(origin, encoding), origin.source.name
    message = problem.message + (f"\nhelp: {problem.hint}" if problem.hint else "")
    if not is_placed and problem.path:
        message = f"{format_path(problem.path)}: {message}"
    severities = types.DiagnosticSeverity
    severity = severities.Error if problem.severity == "error" else severities.Warning
    tags = {
        "deprecated": [types.DiagnosticTag.Deprecated],
        "no-effect": [types.DiagnosticTag.Unnecessary],
    }
    page = None if site is None else types.CodeDescription(href=site.find_address(problem))
    return path, types.Diagnostic(
        range=where,
        message=message,
        severity=severity,
        code=problem.label,
        code_description=page,
        source=SOURCE,
        tags=tags.get(problem.code),
        related_information=list_related(problem, encoding) or None,
    )


def list_related(problem: Problem, encoding: str) -> list[types.DiagnosticRelatedInformation]:
    """Return the other places that a problem involves, and the files that include its own."""
    places = [(related.origin, related.message) for related in problem.related]
    origin = problem.origin
    while origin is not None and origin.source.included_from is not None:
        origin = origin.source.included_from
        places.append((origin, "included from here"))
    return [
        types.DiagnosticRelatedInformation(
            types.Location(to_uri(place.source.name), to_origin_range(place, encoding)), message
        )
        for place, message in places
        if place is not None and place.source.kind == "file"
    ]


def to_completion_item(
    completion: Completion, number: int, lines: TextLines, offset: int
) -> types.CompletionItem:
    """Return a completion that replaces the word before the cursor, in the order given."""
    where = types.Range(lines.to_position_at(completion.start), lines.to_position_at(offset))
    return types.CompletionItem(
        label=completion.label,
        kind=COMPLETION_KINDS[completion.kind],
        detail=completion.detail or None,
        documentation=completion.text or None,
        sort_text=f"{number:05}",
        text_edit=types.TextEdit(where, completion.insert),
    )


def to_hover(hover: Hover, encoding: str) -> types.Hover:
    """Return a description as Markdown."""
    parts = [f"**{hover.title}**", escape_markdown(hover.text)]
    parts.append("\n".join(f"- {name}: {escape_markdown(text)}" for name, text in hover.facts))
    where = None if hover.origin is None else to_origin_range(hover.origin, encoding)
    text = "\n\n".join(part for part in parts if part)
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), where)


def escape_markdown(text: str) -> str:
    """Return text in which no character has a meaning in Markdown; code spans are kept."""
    return re.sub(r"([*_<>\[\]#|\\])", r"\\\1", text)


def to_location(target: Target, text: str, encoding: str) -> types.Location:
    """Return a place in a file, whose text is given."""
    lines = TextLines(text, encoding)
    return types.Location(
        to_uri(target.path), lines.to_range(target.line, target.column, target.end_column)
    )
