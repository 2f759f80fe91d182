"""Edits that are certain enough for a machine: one span of a file, and the text that belongs there."""

import json
import re
from collections.abc import Sequence

from titanrun.config.places import Places
from titanrun.config.problems import Fix, Origin

# a number that YAML and TOML write alike
NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
# what stands between quotes as it is, in YAML and in TOML
UNESCAPED = re.compile(r"[A-Za-z0-9_.+:/-]+")
ANCHOR_BEFORE = re.compile(r"[&!][^\s,\[\]{}]+\s+$")


def rewritten(origin: Origin | None, written: str, meant: str) -> Fix | None:
    """The edit from the word `written` to `meant`, quoted as it was; None where something else stands there."""
    text = None if origin is None else text_at(origin)
    if origin is None or text is None or not UNESCAPED.fullmatch(meant):
        return None
    for quote in ("", '"', "'"):
        if text == f"{quote}{written}{quote}":
            return Fix(origin, f"{quote}{meant}{quote}")
    return None


def unquoted(origin: Origin, written: str, meant: str) -> Fix | None:
    """The edit from text to the number, boolean or null that it spells."""
    known = meant in ("true", "false") or NUMBER.fullmatch(meant)
    return (
        Fix(origin, meant)
        if known and text_at(origin) in (written, f'"{written}"', f"'{written}'")
        else None
    )


def quoted(origin: Origin) -> Fix | None:
    """The edit that puts quotes around a number or boolean where text belongs."""
    text = text_at(origin)
    return Fix(origin, json.dumps(text)) if text is not None and UNESCAPED.fullmatch(text) else None


def text_at(origin: Origin) -> str | None:
    """What stands at a place in a file. None in an override, and behind an anchor, where other places mean the same value."""
    line = origin.source.line(origin.line)
    before = line[: origin.column - 1]
    if origin.source.kind != "file" or ANCHOR_BEFORE.search(before):
        return None
    return line[origin.column - 1 : origin.end_column - 1]


def edited(text: str, fixes: Sequence[Fix]) -> str:
    """The text with all edits made; of two that overlap, the first."""
    done, position = "", 0
    for fix in sorted(set(fixes), key=lambda fix: (fix.origin.line, fix.origin.column)):
        start, end = span(fix.origin)
        if start >= position:
            done += text[position:start] + fix.replacement
            position = end
    return done + text[position:]


def span(origin: Origin) -> tuple[int, int]:
    """The indexes of a place in its text."""
    first = Places(origin.source).starts[origin.line - 1]
    return first + origin.column - 1, first + origin.end_column - 1
