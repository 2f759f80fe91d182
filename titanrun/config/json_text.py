"""JSON of files that others wrote, nested as deeply as every Python version can read."""

import json
import re
from collections.abc import Callable
from typing import Any

# far above any use, and below the recursion limit of every interpreter, which differs
MAX_JSON_DEPTH = 200
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class JsonDepthError(json.JSONDecodeError):
    """Nesting deeper than allowed, at the position of the first bracket that is."""


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text.

    Raises:
        JsonDepthError: it is nested deeper than `MAX_JSON_DEPTH`.
        json.JSONDecodeError: it is not JSON. Both are a ValueError.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    # counting is fast, and nearly always enough
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        check_json_depth(text)
    return json.loads(text, parse_constant=parse_constant)


def check_json_depth(text: str) -> None:
    """Raise JsonDepthError for brackets outside of strings that are nested too deeply."""
    depth = 0
    for match in BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
        elif match[0] in "]}":
            depth -= 1
        if depth > MAX_JSON_DEPTH:
            raise JsonDepthError(f"nested deeper than {MAX_JSON_DEPTH} levels", text, match.start())
