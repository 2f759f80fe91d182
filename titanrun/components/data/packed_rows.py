"""Rows of whole documents, or pieces of them, none of which sees another."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.coded import (
    CODES,
    COUNTS,
    WEIGHTS,
    boundaries,
    codes_of,
    highest_id,
    holds_weights,
)
from titanrun.components.data.index import TokenIndex
from titanrun.components.data.packing import PACKINGS, Members
from titanrun.config.counted import counted
from titanrun.config.problems import fail

log = logging.getLogger(__name__)


class PackedRows:
    """Rows of whole documents, positions starting anew with each; what is left of a row is filled with id 0 and counts nothing.

    Args:
        index: of the documents, each token coded as coded.py says.
        starts: of each document, or piece of one, in the index.
        lengths: of each, at most `row_length`.
        members: the documents of each row.
    """

    def __init__(
        self,
        index: TokenIndex,
        starts: NDArray[np.int64],
        lengths: Sequence[int],
        members: Members,
        *,
        row_length: int,
        shape: str,
    ) -> None:
        self._tokens, self._file = index.tokens, index.watched()
        self._starts, self._lengths, self._members = starts, lengths, members
        self._row_length = row_length
        # other rows of the same tokens are other data to a run that goes on
        self.fingerprint = f"{index.summary.fingerprint(row_length)} {shape}"
        self.max_token_id = highest_id(index.record.max_token_id, index.tokens)
        self._weighs = holds_weights(index.tokens)
        self.left_out = self.cut = 0

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Ids, which of them count, positions, and of an index with weights these, as `Rows` says, [3 or 4, seq_len + 1]."""
        row = np.zeros((4 if self._weighs else 3, self._row_length), dtype=np.int64)
        end = 0
        for number in self._members[index]:
            start, length = int(self._starts[number]), self._lengths[number]
            tokens = self._tokens[start : start + length]
            coded = codes_of(tokens)
            row[:3, end : end + length] = coded // CODES, coded & COUNTS, np.arange(length)
            if self._weighs:
                row[3, end : end + length] = tokens % WEIGHTS
            # in the middle of a document that was cut: what stands before it is another one
            row[1, end] = 0
            end += length
        row[2, end:] = np.arange(self._row_length - end)
        return row

    def check(self) -> None:
        """Raises a data problem where the index has changed since it was opened."""
        self._file.check()


@dataclass(frozen=True, slots=True)
class Packing:
    """How documents come into rows.

    `too_long` says what becomes of those longer than a row: split into pieces, drop, cut at the end of the row, or refuse. `noun` is
    what a document is called in messages.
    """

    packing: str | None
    too_long: str
    row_length: int
    noun: str = "document"


def packed_rows(index: TokenIndex, how: Packing) -> PackedRows:
    """The rows of an index of coded documents. How full they are is logged. Raises a data problem where no row comes of it."""
    starts, lengths = pieces(index.tokens, how)
    if not len(starts):
        raise fail(
            "data", f"every {how.noun} is empty", path=("path",), help="name files that hold text"
        )
    listed = lengths.tolist()
    members = PACKINGS[how.packing](listed, row_length=how.row_length)
    log.info(
        "%s in %s of %d tokens, %.0f%% of them filled",
        *(
            counted(len(listed), how.noun if len(listed) == index.record.documents else "piece"),
            counted(len(members), "row"),
        ),
        *(how.row_length, 100 * sum(listed) / max(1, len(members) * how.row_length)),
    )
    rows = PackedRows(
        index,
        starts,
        listed,
        members,
        row_length=how.row_length,
        shape=f"{how.packing} {how.too_long}",
    )
    if how.too_long != "split":
        lengths_of_all = boundaries(index.tokens)[1]
        rows.left_out, rows.cut = (
            len(lengths_of_all) - len(listed),
            int((lengths_of_all > how.row_length).sum()),
        )
        rows.cut -= rows.left_out
    return rows


def pieces(
    tokens: NDArray[np.integer], how: Packing
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where what goes into rows starts in an index, and how long it is: each at most a row."""
    starts, lengths = boundaries(tokens)
    if how.too_long == "split":
        return split(starts, lengths, row_length=how.row_length)
    kept = fitting(tokens, starts, lengths, how)
    return starts[kept], np.minimum(lengths[kept], how.row_length)


def split(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], *, row_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents longer than a row in pieces as long as a row, the last of each with what is left."""
    counts = -(-lengths // row_length)
    document = np.repeat(np.arange(len(lengths)), counts)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * row_length
    return starts[document] + offset, np.minimum(lengths[document] - offset, row_length)


def fitting(
    tokens: NDArray[np.integer], starts: NDArray[np.int64], lengths: NDArray[np.int64], how: Packing
) -> NDArray[np.int64]:
    """Numbers of the documents that a row holds, whole or cut. How many are left out or cut is logged; what is refused is a problem."""
    too_long = np.flatnonzero(lengths > how.row_length)
    if not len(too_long):
        return np.arange(len(lengths))
    longest = f"{counted(len(too_long), how.noun)} of {len(lengths)} longer than a row of {how.row_length} tokens, the longest {lengths.max()}"
    if how.too_long == "refuse":
        raise fail(
            "data",
            longest,
            path=("too_long",),
            help="set seq_len higher, or too_long to drop or cut",
        )
    out = too_long
    if how.too_long == "cut":
        in_a_row = (
            (number, codes_of(tokens[starts[number] :][: how.row_length])) for number in too_long
        )
        out = np.array(
            [number for number, codes in in_a_row if not (codes & COUNTS).any()], dtype=np.int64
        )
    log.warning("%s: %d left out, %d cut", longest, len(out), len(too_long) - len(out))
    kept = np.setdiff1d(np.arange(len(lengths)), out)
    if not len(kept):
        raise fail("data", longest, path=("too_long",), help="set seq_len higher")
    return kept
