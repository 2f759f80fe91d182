"""Self-contained HTML pages: no external scripts, fonts or images."""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #656d76; --back: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --line: #30363d; --soft: #8d96a0; --back: #161b22; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.soft { color: var(--soft); } .bad { color: #cf222e; }
.right { text-align: right; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
th { font-weight: 600; border-bottom: 1px solid var(--line); } td.right { padding-left: .8rem; }
code, pre, td.code { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--back); padding: 1rem; overflow-x: auto; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(30rem, 1fr)); gap: 1rem; }
.curves svg { width: 100%; border: 1px solid var(--line); border-radius: 6px; }
nav a { margin-right: 1rem; } summary { cursor: pointer; margin: .5rem 0; }
"""


def build_html_page(title: str, subtitle: str, sections: Sequence[tuple[str, str]]) -> str:
    """Build a page: a title, links to the sections, and each section's heading with its HTML."""
    links = " ".join(f'<a href="#{to_anchor(name)}">{escape(name)}</a>' for name, _ in sections)
    body = "\n".join(
        f'<section id="{to_anchor(name)}">\n<h2>{escape(name)}</h2>\n{content}\n</section>'
        for name, content in sections
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    start = f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(subtitle)}</p>\n<nav>{links}</nav>'
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n'
        f"<body>\n{start}\n{body}\n</body>\n</html>\n"
    )


def to_anchor(name: str) -> str:
    """Return the link anchor of a section."""
    return name.lower().replace(" ", "-")


def format_html_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right_aligned: Sequence[int] = (),
    code_columns: Sequence[int] = (),
) -> str:
    """Format rows as a table.

    Columns in `right_aligned` are numbers, those in `code_columns` are literal text of files.
    """
    kinds = [
        "right" if at in right_aligned else "code" if at in code_columns else ""
        for at in range(len(head))
    ]
    marks = [f' class="{kind}"' if kind else "" for kind in kinds]
    top = "".join(f"<th{mark}>{escape(word)}</th>" for mark, word in zip(marks, head, strict=True))
    lines = [
        "<tr>"
        + "".join(
            f"<td{mark}>{escape('' if cell is None else str(cell))}</td>"
            for mark, cell in zip(marks, row, strict=True)
        )
        + "</tr>"
        for row in rows
    ]
    return "\n".join(["<table>", f"<tr>{top}</tr>" if any(head) else "", *lines, "</table>"])


def format_html_details(summary: str, content: str) -> str:
    """Format content that a click unfolds."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def format_html_paragraph(text: str, kind: str = "") -> str:
    """Format a paragraph; `kind` is soft or bad."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def format_html_pre(text: str) -> str:
    """Format the literal text of a file."""
    return f"<pre>{escape(text)}</pre>"
