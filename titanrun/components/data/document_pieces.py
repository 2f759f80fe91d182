"""Pieces of documents in sequences, and the documents that they make up."""

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """Document of a span of a sequence, and where in the document the span begins."""

    document: Hashable
    offset: int
    is_whole: bool


@dataclass(slots=True)
class SplitDocument:
    """Digest of a document whose pieces are read in any order.

    `length` counts the tokens of all pieces so far.
    """

    length: int = 0
    num_hashed: int = 0
    waiting: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    hasher: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))

    def add(self, offset: int, ids: NDArray[np.int64]) -> None:
        """Add the piece at an offset."""
        self.length += len(ids)
        self.waiting[offset] = ids
        while self.num_hashed in self.waiting:
            self._hash(self.num_hashed)

    def finish(self) -> bytes:
        """Return the digest of all pieces, in their order."""
        for offset in sorted(self.waiting):
            self._hash(offset)
        return bytes(self.hasher.digest())

    def _hash(self, offset: int) -> None:
        ids = self.waiting.pop(offset)
        self.hasher.update(ids.tobytes())
        self.num_hashed = offset + len(ids)


def hash_ids(ids: NDArray[np.int64]) -> bytes:
    """Return the digest of a document in one piece."""
    return hashlib.blake2b(ids.tobytes(), digest_size=DIGEST_BYTES).digest()


def locate_pieces(dataset: Any, index: int) -> Iterable[DocumentPiece] | None:
    """Return the piece of each span of a sequence, None if the dataset does not know them."""
    locate = getattr(dataset, "locate_pieces", None)
    found: Iterable[DocumentPiece] | None = None if locate is None else locate(index)
    return found


def locate_spans(
    documents: tuple[NDArray[np.int64], NDArray[np.int64]],
    starts: Iterable[int],
    lengths: Iterable[int],
) -> list[DocumentPiece]:
    """Return the pieces of spans of tokens, from start and length of each document."""
    found = []
    for start, length in zip(starts, lengths, strict=True):
        number = int(np.searchsorted(documents[0], start, side="right")) - 1
        offset = int(start - documents[0][number])
        is_whole = offset == 0 and length == documents[1][number]
        found.append(DocumentPiece(number, offset, is_whole))
    return found
