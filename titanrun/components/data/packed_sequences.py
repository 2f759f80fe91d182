"""Sequences of whole documents, or pieces of them, without attention between them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.bin_packing import PACKERS, Bins
from titanrun.components.data.document_pieces import DocumentPiece, locate_spans
from titanrun.components.data.file_change_guard import UnchangedData
from titanrun.components.data.spec.long_documents import (
    describe_long_documents,
    suggest_sequence_length,
)
from titanrun.components.data.token_file import TokenStream, TokenSummary
from titanrun.components.data.token_records import (
    ID_FACTOR,
    IN_LOSS,
    WEIGHT_FACTOR,
    decode_max_token_id,
    find_document_boundaries,
    has_token_weights,
    strip_weights,
)
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)


class EncodedDocuments(Protocol):
    """Documents as tokens encoded as in token_records.py."""

    @property
    def tokens(self) -> TokenStream:
        """Encoded tokens of all documents."""

    @property
    def summary(self) -> TokenSummary:
        """Hash and highest encoded token."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""

    def get_unchanged_file(self) -> UnchangedData:
        """Return their files, to check that they stay as they are now."""


class PackedDataset:
    """Sequences of whole documents with separate positions, padded with id 0.

    Padding does not count in the loss.

    Args:
        index: Index of the documents, with tokens encoded as in token_records.py.
        starts: Start of each document, or piece of one, in the index.
        lengths: Length of each, at most `sample_length`.
        bins: Documents of each sequence.
    """

    def __init__(
        self,
        index: EncodedDocuments,
        starts: NDArray[np.int64],
        lengths: Sequence[int],
        bins: Bins,
        *,
        sample_length: int,
        packing_key: str,
    ) -> None:
        self.tokens, self._file = index.tokens, index.get_unchanged_file()
        self._starts, self._lengths, self._bins = starts, lengths, bins
        self._sample_length = sample_length
        # other sequences of the same tokens are other data for a resumed run
        self.fingerprint = f"{index.summary.compute_fingerprint(sample_length)} {packing_key}"
        self.max_token_id = decode_max_token_id(index.summary.max_token_id, index.tokens)
        self._has_weights = has_token_weights(index.tokens)
        self.num_dropped = self.num_truncated = 0

    def __len__(self) -> int:
        return len(self._bins)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Return ids, loss mask, positions and, if the index has weights, these.

        Shape [3 or 4, seq_len + 1], as in `IndexedDataset`.
        """
        return build_packed_sequence(
            self.tokens,
            [(int(self._starts[number]), self._lengths[number]) for number in self._bins[index]],
            sample_length=self._sample_length,
            has_weights=self._has_weights,
        )

    def locate_pieces(self, index: int) -> list[DocumentPiece]:
        """Return the document of each span of a sequence."""
        numbers = self._bins[index]
        starts = [int(self._starts[number]) for number in numbers]
        return locate_spans(self._documents, starts, [self._lengths[number] for number in numbers])

    @cached_property
    def _documents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return find_document_boundaries(self.tokens)

    def list_pieces(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and length of the documents, or pieces, of all sequences, by their start."""
        numbers = np.sort(np.fromiter(chain.from_iterable(self._bins), dtype=np.int64))
        return self._starts[numbers], np.asarray(self._lengths, dtype=np.int64)[numbers]

    def check(self) -> None:
        """Raise a data problem if the index has changed since it was opened."""
        self._file.check()


def build_packed_sequence(
    tokens: TokenStream,
    spans: Sequence[tuple[int, int]],
    *,
    sample_length: int,
    has_weights: bool,
) -> NDArray[np.int64]:
    """Return ids, loss mask, positions and possibly weights of a sequence, padded with id 0.

    Args:
        tokens: Encoded tokens.
        spans: Start and length of each document, or piece of one, in the sequence.
        sample_length: Length of the sequence.
        has_weights: Whether the tokens have weights.
    """
    row = np.zeros((4 if has_weights else 3, sample_length), dtype=np.int64)
    end = 0
    for start, length in spans:
        part = tokens[start : start + length]
        coded = strip_weights(part)
        row[:3, end : end + length] = coded // ID_FACTOR, coded & IN_LOSS, np.arange(length)
        if has_weights:
            row[3, end : end + length] = part % WEIGHT_FACTOR
        # in a piece of a split document, the tokens before it in the sequence are of another
        # document
        row[1, end] = 0
        end += length
    row[2, end:] = np.arange(sample_length - end)
    return row


@dataclass(frozen=True, slots=True)
class PackingOptions:
    """Packing of documents into sequences.

    `too_long` is the handling of documents longer than a sequence: split, drop, cut (truncate) or
    refuse. `document_noun` is the name of a document in messages.
    """

    method: str | None
    too_long: str
    sample_length: int
    document_noun: str = "document"


def build_packed_dataset(index: EncodedDocuments, options: PackingOptions) -> PackedDataset:
    """Build the sequences of an index of encoded documents and log how full they are.

    Raises:
        ProblemsFound: A data problem if there is no sequence.
    """
    starts, lengths = find_packable_spans(index.tokens, options)
    if not len(starts):
        raise problem_error(
            "data",
            f"every {options.document_noun} is empty",
            path=("path",),
            hint="name files that hold text",
        )
    listed = lengths.tolist()
    members = PACKERS[options.method](listed, sample_length=options.sample_length)
    log.info(
        "%s in %s of %s tokens, %.0f%% non-padding",
        *(
            pluralize(
                len(listed),
                "piece"
                if options.too_long == "split" and len(listed) != index.num_documents
                else options.document_noun,
            ),
            pluralize(len(members), "sequence"),
        ),
        *(
            f"{options.sample_length:,}",
            100 * sum(listed) / max(1, len(members) * options.sample_length),
        ),
    )
    dataset = PackedDataset(
        index,
        starts,
        listed,
        members,
        sample_length=options.sample_length,
        packing_key=f"{options.method} {options.too_long}",
    )
    if options.too_long != "split":
        lengths_of_all = find_document_boundaries(index.tokens)[1]
        dataset.num_dropped, dataset.num_truncated = (
            len(lengths_of_all) - len(listed),
            int((lengths_of_all > options.sample_length).sum()),
        )
        dataset.num_truncated -= dataset.num_dropped
    return dataset


def find_packable_spans(
    tokens: TokenStream, options: PackingOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and length of the documents or pieces to pack, at most a sequence each."""
    starts, lengths = find_document_boundaries(tokens)
    if options.too_long == "split":
        return split_long_documents(starts, lengths, sample_length=options.sample_length)
    kept = select_fitting_documents(tokens, starts, lengths, options)
    return starts[kept], np.minimum(lengths[kept], options.sample_length)


def split_long_documents(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], *, sample_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split documents longer than a sequence into pieces of its length, the last one shorter."""
    counts = -(-lengths // sample_length)
    document = np.repeat(np.arange(len(lengths)), counts)
    offset = (
        np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    ) * sample_length
    return starts[document] + offset, np.minimum(lengths[document] - offset, sample_length)


def select_fitting_documents(
    tokens: TokenStream,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    options: PackingOptions,
) -> NDArray[np.int64]:
    """Return the indices of the documents that fit a sequence, whole or truncated.

    The number of dropped and truncated documents is logged. Refused ones are a problem.
    """
    too_long = np.flatnonzero(lengths > options.sample_length)
    if not len(too_long):
        return np.arange(len(lengths))
    longest = tell_long_documents(lengths, options)
    fitting = suggest_sequence_length(int(lengths.max()))
    if options.too_long == "refuse":
        raise problem_error(
            "data",
            longest,
            path=("too_long",),
            hint=f"{fitting}, or set too_long: drop or cut",
        )
    out = find_unusable_documents(tokens, starts, lengths, options)
    log.warning("%s: %d dropped, %d truncated", longest, len(out), len(too_long) - len(out))
    kept = np.setdiff1d(np.arange(len(lengths)), out)
    if not len(kept):
        raise problem_error("data", longest, path=("too_long",), hint=fitting)
    return kept


def tell_long_documents(lengths: NDArray[np.int64], options: PackingOptions) -> str:
    """Return how many documents are longer than a sequence, for messages."""
    return describe_long_documents(
        options.document_noun,
        int((lengths > options.sample_length).sum()),
        len(lengths),
        sample_length=options.sample_length,
        longest=int(lengths.max()),
    )


def find_unusable_documents(
    tokens: TokenStream,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    options: PackingOptions,
) -> NDArray[np.int64]:
    """Return the indices of the documents to drop.

    They are longer than a sequence and, if such documents are truncated, have no token in the loss
    before the cut.
    """
    too_long = np.flatnonzero(lengths > options.sample_length)
    if options.too_long != "cut":
        return too_long
    truncated = (
        (number, strip_weights(tokens[start : start + options.sample_length]))
        for number, start in zip(too_long, starts[too_long].tolist(), strict=True)
    )
    return np.array(
        [number for number, codes in truncated if not (codes & IN_LOSS).any()], dtype=np.int64
    )
