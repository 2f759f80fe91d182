"""Signs a resolved recipe with the hash of its own text, so that a changed one is noticed."""

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

from titanrun.config.emit import emit

HEADER = "# titanrun resolved recipe, format 1, sha256:"
SIGNATURE = re.compile(re.escape(HEADER) + r"([0-9a-f]{64})\n")
SIGNED = "# titanrun resolved recipe"


def signed(data: Mapping[str, object]) -> str:
    """Canonical YAML below a line with the format version and the hash of everything below that line."""
    body = emit(data)
    return f"{HEADER}{digest(body)}\n{body}"


def check_signature(text: str) -> Literal["none", "good", "changed"]:
    """Whether text carries the header of a resolved recipe, and whether the body still is what was signed.

    A byte order mark and the kind of line breaks do not count: editors change them and no value depends on them.
    """
    unified = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not unified.startswith(SIGNED):
        return "none"
    found = SIGNATURE.match(unified)
    return "good" if found and found[1] == digest(unified[found.end() :]) else "changed"


def recipe_hash(text: str) -> str:
    """What the header of a resolved recipe says its hash is; of a text without one, the hash of that text."""
    found = SIGNATURE.match(text)
    return found[1] if found else digest(text)


def digest(body: str) -> str:
    """The SHA-256 of text as hexadecimal digits."""
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
