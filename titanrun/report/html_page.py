"""Self-contained HTML pages: no scripts, and no fonts, styles or images of other files."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLES = ("tokens.css", "report.css")
# where a long name may break before it breaks within a word; never within a number or an ending
LINE_BREAKS = re.compile(
    r"(?:(?<=[^\W\d][./_=])(?=\w)|(?<=\w[./_=])(?=[^\W\d]))"
    r"(?<!\.(?=(?:ya?ml|toml|jsonl?|txt|py|md|log)\b))"
)
DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def build_html_page(title: str, header: str, sections: Sequence[tuple[str, str]]) -> str:
    """Build a page: the header, links to the sections, and each section's heading with its HTML."""
    anchors = [f"section-{number}" for number in range(1, len(sections) + 1)]
    links = "".join(
        f'<a href="#{anchor}">{escape_name(name)}</a>\n'
        for anchor, (name, _) in zip(anchors, sections, strict=True)
    )
    body = "\n".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h2 id="{anchor}-title">{escape_name(name)}</h2>\n{content}\n</section>'
        for anchor, (name, content) in zip(anchors, sections, strict=True)
    )
    head = (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{read_styles()}</style>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n'
        f'<header>\n{header}\n<nav aria-label="Sections">\n{links}</nav>\n</header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def read_styles() -> str:
    """Return the text of the style sheets."""
    return "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in STYLES)


def escape_name(text: str) -> str:
    """Escape a text with names; long ones may break after `.`, `/`, `_` and `=`, dates nowhere."""
    text = "<wbr>".join(escape(piece) for piece in LINE_BREAKS.split(text))
    return DATE.sub(r'<span class="date">\g<0></span>', text)


def format_html_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    label: str,
    right_aligned: Sequence[int] = (),
    code_columns: Sequence[int] = (),
) -> str:
    """Format rows as a table that scrolls within the page.

    Columns in `right_aligned` are numbers, those in `code_columns` are literal text of files.
    """
    kinds = [
        "right" if at in right_aligned else "code" if at in code_columns else ""
        for at in range(len(head))
    ]
    marks = [f' class="{kind}"' if kind else "" for kind in kinds]
    top = "".join(
        f'<th scope="col"{mark}>{escape_name(word)}</th>'
        for mark, word in zip(marks, head, strict=True)
    )
    lines = [
        "<tr>"
        + "".join(
            f"<td{mark}>{escape_name('' if cell is None else str(cell))}</td>"
            for mark, cell in zip(marks, row, strict=True)
        )
        + "</tr>"
        for row in rows
    ]
    body = "\n".join(lines)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">\n'
        f"<table><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n</div>"
    )


def format_html_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Format names with their values, side by side where there is room."""
    items = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape_name(value)}</dd></div>" for name, value in facts
    )
    return f'<dl class="facts">\n{items}\n</dl>'


def format_html_details(summary: str, content: str) -> str:
    """Format content that a click unfolds."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def format_html_paragraph(text: str, kind: str = "") -> str:
    """Format a paragraph; `kind` is soft or bad."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def format_html_pre(text: str, label: str) -> str:
    """Format the literal text of a file."""
    return f'<pre tabindex="0" role="group" aria-label="{escape(label)}">{escape(text)}</pre>'
