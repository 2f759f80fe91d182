"""Tokens of an index whose documents are told apart: each is one number for the id, whether a document begins, and whether it counts.

In an index of 8 bytes a token the lower half of each is what the token weighs in the loss, the bits of an fp32 number.
"""

import numpy as np
from numpy.typing import NDArray

CODES, BEGINS, COUNTS = 4, 2, 1
"""A token of such an index is its id times 4, plus 2 where it begins a document, plus 1 where it counts as a label."""
WEIGHTS = 2**32
"""What such a number is multiplied by where a weight stands below it."""
BLOCK = 2**24


def holds_weights(tokens: NDArray[np.integer]) -> bool:
    """Whether each token of an index has a weight of its own."""
    return tokens.dtype.itemsize == 8


def codes_of(tokens: NDArray[np.integer]) -> NDArray[np.int64]:
    """The numbers of tokens without their weights."""
    return (tokens // WEIGHTS if holds_weights(tokens) else tokens).astype(np.int64)


def highest_id(highest: int, tokens: NDArray[np.integer]) -> int:
    """The id in the highest number of an index."""
    return highest // (CODES * (WEIGHTS if holds_weights(tokens) else 1))


def with_weights(codes: NDArray[np.int64], weights: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Tokens of an index that holds weights, none of them negative."""
    return codes.astype(np.uint64) * np.uint64(WEIGHTS) + weights.view(np.uint32).astype(np.uint64)


def boundaries(tokens: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each document of an index starts, and its length."""
    found = [
        at + np.flatnonzero(codes_of(tokens[at : at + BLOCK]) & BEGINS)
        for at in range(0, len(tokens), BLOCK)
    ]
    starts = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    return starts, np.diff(starts, append=len(tokens))


def coded_document(ids: NDArray[np.integer], *, begins: bool) -> NDArray[np.int64]:
    """The numbers of a document's tokens, or of a part of one. The first token of a document counts as no label: nothing comes before."""
    numbers = ids.astype(np.int64) * CODES + COUNTS
    if begins and len(numbers):
        numbers[0] += BEGINS - COUNTS
    return numbers
