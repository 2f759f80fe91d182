"""Machine-applicable edits: one span of a file and its replacement."""

import json
import re
from collections.abc import Sequence

from titanrun.config.problems import Fix, Origin
from titanrun.config.text_positions import TextPositions
from titanrun.config.tree import Node
from titanrun.config.yaml_scalars import NUMBER, OTHER_BASE

# text that is literal between quotes, in YAML and in TOML
UNESCAPED = re.compile(r"[A-Za-z0-9_.+:/-]+")
ANCHOR_BEFORE = re.compile(r"[&!][^\s,\[\]{}]+\s+$")


def build_word_fix(origin: Origin | None, written: str, meant: str) -> Fix | None:
    """Build the edit from the word `written` to `meant`, quoted as before.

    Return None if the file has other text there.
    """
    text = None if origin is None else find_text_at(origin)
    if origin is None or text is None or not UNESCAPED.fullmatch(meant):
        return None
    for quote in ("", '"', "'"):
        if text == f"{quote}{written}{quote}":
            return Fix(origin, f"{quote}{meant}{quote}")
    return None


def build_unquote_fix(origin: Origin, written: str, meant: str) -> Fix | None:
    """Build the edit from text to the number, boolean or null that it spells."""
    known = meant in ("true", "false") or NUMBER.fullmatch(meant) or OTHER_BASE.fullmatch(meant)
    return (
        Fix(origin, meant)
        if known and find_text_at(origin) in (written, f'"{written}"', f"'{written}'")
        else None
    )


def build_quote_fix(origin: Origin) -> Fix | None:
    """Build the edit that puts quotes around a number or boolean in the place of text."""
    text = find_text_at(origin)
    return Fix(origin, json.dumps(text)) if text is not None and UNESCAPED.fullmatch(text) else None


def find_text_at(origin: Origin) -> str | None:
    """Return the text at a location in a file.

    Return None in an override, and after an anchor, where other locations share the value.
    """
    line = origin.source.get_line(origin.line)
    before = line[: origin.column - 1]
    if origin.source.kind != "file" or ANCHOR_BEFORE.search(before):
        return None
    return line[origin.column - 1 : origin.end_column - 1]


def find_number_text(node: Node) -> str | None:
    """Return a number as its author wrote it: 1e5, not 100000.0.

    Return None for other values, and for numbers that an alias or a reference leads to.
    """
    origin = node.origin
    if type(node.value) not in (int, float) or node.via == "interpolation" or node.alias_origins:
        return None
    text = origin.source.get_line(origin.line)[origin.column - 1 : origin.end_column - 1]
    return text if UNESCAPED.fullmatch(text) else None


def apply_text_edits(text: str, fixes: Sequence[Fix]) -> str:
    """Return the text with all edits applied; of two that overlap, the first."""
    done, position = "", 0
    for fix in sorted(set(fixes), key=lambda fix: (fix.origin.line, fix.origin.column)):
        start, end = get_text_span(fix.origin)
        if start >= position:
            done += text[position:start] + fix.replacement
            position = end
    return done + text[position:]


def get_text_span(origin: Origin) -> tuple[int, int]:
    """Return the start and end index of a location in its text."""
    first = TextPositions(origin.source).line_starts[origin.line - 1]
    return first + origin.column - 1, first + origin.end_column - 1
