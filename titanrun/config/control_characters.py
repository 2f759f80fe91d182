"""Characters that a terminal or a shell obeys instead of showing them, and their escapes."""

import re

# C0 and C1 controls, line and paragraph separators, marks that change the direction of text
# (Trojan Source, CVE-2021-42574), byte order mark, lone surrogates
CONTROL_CHARACTER = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# the same without those that lay out several lines
CONTROL_BUT_LAYOUT = re.compile(rf"(?![\t\n]){CONTROL_CHARACTER.pattern}")


def escape_line(text: str) -> str:
    """Return the text on one line, with every control character as a JSON escape."""
    return CONTROL_CHARACTER.sub(format_escape, text)


def escape_lines(text: str) -> str:
    """Return the text with control characters as escapes, except for line breaks and tabs.

    JSON stays valid and keeps its meaning, since the escapes are those of JSON.
    """
    return CONTROL_BUT_LAYOUT.sub(format_escape, text)


def format_escape(found: re.Match[str]) -> str:
    """Format the escape of one character."""
    return SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"
