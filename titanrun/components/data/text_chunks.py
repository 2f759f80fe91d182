"""Chunks of long documents that are tokenized one by one, to bound memory."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

CHUNK_LENGTH = 2**20
"""Chunk size in characters. A shorter document is one chunk. Encoding takes some 50 bytes of memory
per character."""
CONTEXT_LENGTH = 256
"""Characters on each side of a split that are encoded, together and separately, to see whether the
split changes the tokens."""

# in a longer run of spaces, tokens depend on its length, which the context does not show
SINGLE_SPACE = re.compile(r"(?<=\S) (?=\S)")


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Consecutive piece of a document's text."""

    text: str
    is_first: bool
    is_last: bool


def iter_chunks(
    document: Iterable[str], tokenizer: Tokenizer, *, length: int = CHUNK_LENGTH
) -> Iterator[TextChunk]:
    """Yield a document, given as consecutive strings, in chunks of about `length` characters.

    It is split only between two strings, two lines or two words of a long line, and only if the
    tokens around the split stay the same. A chunk grows longer until such a position is found.
    """
    pending: list[str] = []
    size, is_first = 0, True
    for text in split_long_strings(document, length):
        if size >= length and is_safe_split(pending[-1], text, tokenizer):
            yield TextChunk("".join(pending), is_first, is_last=False)
            pending, size, is_first = [], 0, False
        pending.append(text)
        size += len(text)
    yield TextChunk("".join(pending), is_first, is_last=True)


def split_long_strings(document: Iterable[str], length: int) -> Iterator[str]:
    """Yield the strings of a document, those longer than `length` line by line."""
    for text in document:
        if len(text) > length:
            for line in text.splitlines(keepends=True):
                yield from split_long_line(line, length)
        else:
            yield text


def split_long_line(line: str, length: int) -> Iterator[str]:
    """Yield a line in pieces of about `length` characters, split before single spaces."""
    start = 0
    while len(line) - start > length:
        found = SINGLE_SPACE.search(line, start + length)
        if found is None:
            break
        yield line[start : found.start()]
        start = found.start()
    yield line[start:]


def is_safe_split(before: str, after: str, tokenizer: Tokenizer) -> bool:
    """Return whether the text around a split has the same tokens with and without the split."""
    left, right = before[-CONTEXT_LENGTH:], after[:CONTEXT_LENGTH]
    together, left_ids, right_ids = tokenizer.encode_batch(
        [left + right, left, right], add_bos=False, add_eos=False
    )
    return together == left_ids + right_ids
