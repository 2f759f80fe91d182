"""Checksum header of a resolved recipe, which makes later changes detectable."""

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

from titanrun.config.serialize import to_yaml

HEADER = "# titanrun resolved recipe, format 1, sha256:"
CHECKSUM_LINE = re.compile(re.escape(HEADER) + r"([0-9a-f]{64})\n")
HEADER_START = "# titanrun resolved recipe"


def to_yaml_with_checksum(data: Mapping[str, object]) -> str:
    """Return canonical YAML below a header with the format version and a hash of the body."""
    body = to_yaml(data)
    return f"{HEADER}{compute_text_sha256(body)}\n{body}"


def get_checksum_state(text: str) -> Literal["none", "good", "changed"]:
    """Return whether text has a resolved-recipe header and whether its hash still matches.

    A byte order mark and the kind of line breaks do not count: editors change them and no value
    depends on them.
    """
    unified = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not unified.startswith(HEADER_START):
        return "none"
    found = CHECKSUM_LINE.match(unified)
    return (
        "good" if found and found[1] == compute_text_sha256(unified[found.end() :]) else "changed"
    )


def get_recipe_hash(text: str) -> str:
    """Return the hash in the header of a resolved recipe, or the hash of text without one."""
    found = CHECKSUM_LINE.match(text)
    return found[1] if found else compute_text_sha256(text)


def compute_text_sha256(body: str) -> str:
    """Compute the SHA-256 of text as hexadecimal digits."""
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
