"""Digest of a tokenizer in the name of its file, which datatrove repeats beside its tokens."""

import re

NAMED_DIGEST = re.compile(r"tokenizer-([0-9a-f]{64})\.json")


def name_tokenizer_file(stem: str, fingerprint: str) -> str:
    """Return the name of the tokenizer's file of a pipeline."""
    return f"{stem}.tokenizer-{fingerprint}.json"


def find_tokenizer_digest(name: str) -> str | None:
    """Return the digest in a tokenizer's path, None if the path has none."""
    found = NAMED_DIGEST.search(name)
    return found[1] if found else None
