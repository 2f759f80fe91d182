"""Split of the documents of a dataset into training and validation, while an index is built."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from titanrun.components.data.spec.holdout_hash import HASH_RANGE, compute_holdout_threshold
from titanrun.components.data.spec.holdout_limits import MIN_DOCUMENTS, describe_small_side
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error

HOLDOUT, HOLDOUT_BY = "holdout", "holdout_by"
"""Fields of the section validation. A dataset reports problems with them below its own path."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holdout:
    """One side of the split of a dataset's documents.

    Args:
        size: Share of the documents that are held out, below 1, or their number.
        by: Column that is hashed instead of the document.
        is_validation: Whether the held-out documents are read, or else all others.
        is_part: Whether the dataset is a source of a mixture, which may have no held-out documents.
    """

    size: float
    by: str | None = None
    is_validation: bool = False
    is_part: bool = False

    @property
    def label(self) -> str:
        """What a message calls this side."""
        return "held out" if self.is_validation else "training"

    def describe(self) -> list[object]:
        """Return everything that the documents of this side depend on."""
        return [HOLDOUT, self.size, self.by, self.is_validation]


class HeldOutDataTooSmall(ProblemsFound):
    """Problem of held-out documents that are too few to validate on."""


class DocumentFilter(Protocol):
    """Choice of documents by their hash, which is computed as in spec/holdout_hash.py."""

    by: str | None
    num_other_side: int

    def keeps(self, document_hash: int) -> bool:
        """Return whether a document is read, and count it otherwise."""
        ...


class DocumentSplit:
    """Documents of one side of a split; those of the other side are counted."""

    def __init__(self, holdout: Holdout, threshold: int) -> None:
        self.by, self.num_other_side = holdout.by, 0
        self._threshold, self._is_validation = threshold, holdout.is_validation

    def keeps(self, document_hash: int) -> bool:
        """Return whether a document is on this side."""
        is_kept = (document_hash < self._threshold) == self._is_validation
        self.num_other_side += not is_kept
        return is_kept


class HashCollector:
    """Hashes of all documents, of which none is kept: they tell which ones are a given number."""

    def __init__(self, by: str | None) -> None:
        self.by, self.num_other_side = by, 0
        self._hashes = array("Q")

    def keeps(self, document_hash: int) -> bool:
        """Return False."""
        self._hashes.append(document_hash)
        self.num_other_side += 1
        return False

    def compute_threshold(self, count: int) -> int:
        """Return the hash below which `count` documents are; more if some are equal."""
        if count >= len(self._hashes):
            return HASH_RANGE
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        return int(np.partition(hashes, count - 1)[count - 1]) + 1


def split_documents(holdout: Holdout | None, write: Callable[[DocumentFilter | None], T]) -> T:
    """Return what `write` returns for the documents of one side, or for all of them.

    For a number of documents instead of a share, `write` is called twice: the first time it only
    reads.
    """
    if holdout is None:
        return write(None)
    if holdout.size < 1:
        return write(DocumentSplit(holdout, compute_holdout_threshold(holdout.size)))
    collector = HashCollector(holdout.by)
    write(collector)
    return write(DocumentSplit(holdout, collector.compute_threshold(int(holdout.size))))


def check_split_sizes(
    holdout: Holdout, documents: int, other_side: int, *, noun: str, source: str
) -> None:
    """Check that both sides of a split have documents.

    Raises:
        ProblemsFound: A conflict if a side has fewer than 2. A source of a mixture only needs
            documents on the side that is read.
    """
    held, trained = (documents, other_side) if holdout.is_validation else (other_side, documents)
    is_held_too_small = held < MIN_DOCUMENTS and (holdout.is_validation or not holdout.is_part)
    if not is_held_too_small and (trained >= MIN_DOCUMENTS or holdout.is_validation):
        return
    described = describe_small_side(
        holdout.size,
        held,
        documents + other_side,
        noun=noun,
        source=source,
        takes_number=not holdout.is_part,
    )
    assert described is not None, "a side is too small"
    message, hint = described
    problem = problem_error("conflict", message, path=(HOLDOUT,), hint=hint)
    raise HeldOutDataTooSmall(problem.problems) if is_held_too_small else problem


def check_held_out_length(
    holdout: Holdout | None, num_tokens: int, *, sample_length: int, source: str
) -> None:
    """Check that the held-out documents fill a sequence if they are concatenated."""
    if holdout is None or not holdout.is_validation or num_tokens >= sample_length:
        return
    problem = problem_error(
        "data",
        f"the documents of '{source}' that validation.holdout {holdout.size:g} holds out have "
        f"{pluralize(num_tokens, 'token')}, one sequence of seq_len {sample_length - 1} needs "
        f"{sample_length}",
        path=(HOLDOUT,),
        hint="set a larger validation.holdout, a smaller validation.seq_len, or packing: null",
    )
    raise HeldOutDataTooSmall(problem.problems)


def format_split(documents: int, other_side: int, noun: str, *, asked: float) -> str:
    """Return how many documents training leaves out: `held out 52 of 1,040 documents (5%)`.

    Hashes decide, so that few documents rarely have the share that was asked for: then that is
    told, too.
    """
    total = documents + other_side
    share = f"{100 * other_side / max(1, total):.2g}%"
    meant = f"{100 * asked:.2g}%" if asked < 1 else f"{asked:,.0f}"
    is_met = meant in (share, f"{other_side:,}")
    told = share if is_met else f"{share}, {meant} asked"
    return f"held out {other_side:,} of {pluralize(total, noun)} ({told})"
