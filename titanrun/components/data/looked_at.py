"""What rows hold, for people: documents, how full rows are, what counts, and samples."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.rows import Rows
from titanrun.components.tokenizers.tokenizer import Tokenizer

MOST_ROWS = 50_000
"""Rows that are looked at, the first ones."""


@dataclass(slots=True)
class Look:
    """What was seen in rows. `digests` tells documents apart; `lengths` are theirs in tokens."""

    rows: int
    tokens: int = 0
    filled: int = 0
    counted: int = 0
    lengths: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    counted_of_rows: list[int] = field(default_factory=list)


def look(rows: Rows, *, eos_id: int | None) -> Look:
    """Goes through the rows, or the first of very many. A document is what positions, or else end-of-text tokens, set apart."""
    found = Look(rows=min(len(rows), MOST_ROWS))
    rest: list[NDArray[np.int64]] = []
    for index in range(found.rows):
        row = rows[index]
        found.tokens += row.shape[-1]
        if row.ndim == 2:
            ids, counts = row[:2]
            found.counted_of_rows.append(int(counts[1:].sum()))
            for start, end in documents(row):
                found.filled += end - start
                add(found, ids[start:end])
            continue
        found.filled += len(row)
        found.counted_of_rows.append(len(row) - 1)
        ends = (
            np.flatnonzero(row == eos_id) + 1 if eos_id is not None else np.zeros(0, dtype=np.int64)
        )
        *whole, last = np.split(row, ends)
        for piece in whole:
            add(found, np.concatenate([*rest, piece]))
            rest = []
        if len(last):
            rest.append(last)
    if rest:
        add(found, np.concatenate(rest))
    found.counted = sum(found.counted_of_rows)
    return found


def add(found: Look, ids: NDArray[np.int64]) -> None:
    """Note a document."""
    found.lengths.append(len(ids))
    found.digests.append(hashlib.blake2b(ids.tobytes(), digest_size=12).digest())


def documents(row: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where each document of a row with marks begins and ends; what fills the rest of the row is none."""
    ids, counts, positions = row[:3]
    starts = [0, *(np.flatnonzero(positions[1:] <= positions[:-1]) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        if end < len(ids) or ids[start:end].any() or counts[start:end].any():
            yield start, end


def pieces(row: NDArray[np.int64], tokenizer: Tokenizer | None) -> list[tuple[str, str]]:
    """The text of a row in pieces, each with what it is: counted (a label that counts), context, or filled; what counted text weighs, where
    tokens have weights, stands behind it.

    Without a tokenizer the ids stand for themselves. Special tokens are shown.
    """
    if row.ndim == 1:
        return [("context", text_of(row[:1], tokenizer)), ("counted", text_of(row[1:], tokenizer))]
    found: list[tuple[str, str]] = []
    ids, counts = row[:2]
    # of tokens that weigh something, what they weigh tells them apart
    kinds = row[3] * counts if len(row) == 4 else counts
    ended = 0
    for start, end in documents(row):
        changes = [start, *(start + 1 + np.flatnonzero(np.diff(kinds[start:end]))).tolist(), end]
        for first, last in pairwise(changes):
            found.append(
                ("counted" if counts[first] else "context", text_of(ids[first:last], tokenizer))
            )
            if len(row) == 4 and counts[first]:
                found.append(("weight", f"{row[3, first].astype(np.int32).view(np.float32):g}"))
        found.append(("end", ""))
        ended = end
    if ended < len(ids):
        found.append(("filled", str(len(ids) - ended)))
    return found


def text_of(ids: NDArray[np.int64], tokenizer: Tokenizer | None) -> str:
    """The text of ids; of a special token, which has none, its number."""
    if tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    text, plain = "", list[int]()
    for id in ids.tolist():
        if tokenizer.decode([id]):
            plain.append(id)
            continue
        text += tokenizer.decode(plain) + special(id, tokenizer)
        plain = []
    return text + tokenizer.decode(plain)


def special(id: int, tokenizer: Tokenizer) -> str:
    """How a token without text is shown."""
    names = {tokenizer.bos_id: "begin of text", tokenizer.eos_id: "end of text"}
    return f"<{names.get(id, f'token {id}')}>"
