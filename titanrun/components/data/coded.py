"""Tokens of an index whose documents are told apart: each is one number for the id, whether a document begins, and whether it counts."""

import numpy as np
from numpy.typing import NDArray

CODES, BEGINS, COUNTS = 4, 2, 1
"""A token of such an index is its id times 4, plus 2 where it begins a document, plus 1 where it counts as a label."""
BLOCK = 2**24


def boundaries(tokens: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each document of an index starts, and its length."""
    found = [at + np.flatnonzero(tokens[at : at + BLOCK] & BEGINS) for at in range(0, len(tokens), BLOCK)]
    starts = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    return starts, np.diff(starts, append=len(tokens))


def coded_document(ids: NDArray[np.integer], *, begins: bool) -> NDArray[np.int64]:
    """The numbers of a document's tokens, or of a part of one. The first token of a document counts as no label: nothing comes before."""
    numbers = ids.astype(np.int64) * CODES + COUNTS
    if begins and len(numbers):
        numbers[0] += BEGINS - COUNTS
    return numbers
