"""Encoded tokens of indexes that separate documents.

One integer holds the id, whether a document begins, and whether the token counts in the loss. In an
index of 8 bytes per token, the lower half of each is the loss weight of the token, the bits of an
fp32 number.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.token_file import TokenStream

ID_FACTOR, STARTS_DOCUMENT, IN_LOSS = 4, 2, 1
"""Encoding of a token: its id times 4, plus 2 if it begins a document, plus 1 if it counts as a
label."""
WEIGHT_FACTOR = 2**32
"""Factor of an encoded token with a weight below it."""
BLOCK_TOKENS = 2**24


@runtime_checkable
class LocatedDocuments(TokenStream, Protocol):
    """Encoded tokens with known documents."""

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """Start of each document, in tokens."""


def has_token_weights(tokens: TokenStream) -> bool:
    """Return whether each token of an index has a weight."""
    return tokens.dtype.itemsize == 8


def strip_weights(tokens: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the encoded tokens without their weights."""
    return (tokens // WEIGHT_FACTOR if has_token_weights(tokens) else tokens).astype(np.int64)


def decode_max_token_id(max_record: int, tokens: TokenStream) -> int:
    """Return the id in the highest encoded token of an index."""
    return max_record // (ID_FACTOR * (WEIGHT_FACTOR if has_token_weights(tokens) else 1))


def attach_weights(codes: NDArray[np.int64], weights: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Add weights, or other fp32 values, to encoded tokens."""
    return codes.astype(np.uint64) * np.uint64(WEIGHT_FACTOR) + weights.view(np.uint32).astype(
        np.uint64
    )


def read_document_values(tokens: TokenStream) -> NDArray[np.float32]:
    """Return the value of each document of an index with weights, that of its first token."""
    found = []
    for at in range(0, len(tokens), BLOCK_TOKENS):
        block = np.asarray(tokens[at : at + BLOCK_TOKENS])
        first = block[(strip_weights(block) & STARTS_DOCUMENT) > 0]
        found.append((first % WEIGHT_FACTOR).astype(np.uint32).view(np.float32))
    return np.concatenate(found) if found else np.zeros(0, dtype=np.float32)


def find_document_boundaries(
    tokens: TokenStream,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and length of each document of an index, which are read unless known."""
    if isinstance(tokens, LocatedDocuments):
        return tokens.document_starts, np.diff(tokens.document_starts, append=len(tokens))
    found = [
        at + np.flatnonzero(strip_weights(tokens[at : at + BLOCK_TOKENS]) & STARTS_DOCUMENT)
        for at in range(0, len(tokens), BLOCK_TOKENS)
    ]
    starts = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    return starts, np.diff(starts, append=len(tokens))


def encode_document(ids: NDArray[np.integer], *, is_document_start: bool) -> NDArray[np.int64]:
    """Encode the tokens of a document, or of a chunk of one.

    The first token of a document does not count as a label, since no token precedes it.
    """
    numbers = ids.astype(np.int64) * ID_FACTOR + IN_LOSS
    if is_document_start and len(numbers):
        numbers[0] += STARTS_DOCUMENT - IN_LOSS
    return numbers
