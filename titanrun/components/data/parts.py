"""Long documents in parts that can be tokenised one by one, so that memory stays bounded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from titanrun.components.tokenizers.tokenizer import Tokenizer

PART_LENGTH = 2**20
"""Characters. A document up to this long is one part; the encoding of a part takes some 50 bytes of memory a character."""
CONTEXT_LENGTH = 256
"""Characters on each side of a cut that are encoded, together and apart, to see whether the cut changes the tokens."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a document's text."""

    text: str
    is_first: bool
    is_last: bool


def parts(
    document: Iterable[str], tokenizer: Tokenizer, *, length: int = PART_LENGTH
) -> Iterator[Part]:
    """A document, given as consecutive strings, in parts of about `length` characters.

    It is cut only between two strings or two lines, and only where the tokens around the cut stay the same; where no such place
    comes, a part grows longer.
    """
    pending: list[str] = []
    size, is_first = 0, True
    for text in in_lines(document, length):
        if size >= length and cut_keeps_tokens(pending[-1], text, tokenizer):
            yield Part("".join(pending), is_first, is_last=False)
            pending, size, is_first = [], 0, False
        pending.append(text)
        size += len(text)
    yield Part("".join(pending), is_first, is_last=True)


def in_lines(document: Iterable[str], length: int) -> Iterator[str]:
    """The strings of a document, those longer than `length` line by line."""
    for text in document:
        if len(text) > length:
            yield from text.splitlines(keepends=True)
        else:
            yield text


def cut_keeps_tokens(before: str, after: str, tokenizer: Tokenizer) -> bool:
    """Whether the text before and after a cut has the same tokens apart as together."""
    left, right = before[-CONTEXT_LENGTH:], after[:CONTEXT_LENGTH]
    together, left_ids, right_ids = tokenizer.encode_batch(
        [left + right, left, right], bos=False, eos=False
    )
    return together == left_ids + right_ids
