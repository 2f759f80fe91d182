"""Sequences split from a stream of token ids."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.document_pieces import DocumentPiece, locate_spans
from titanrun.components.data.file_change_guard import UnchangedData
from titanrun.components.data.token_file import TokenStream, TokenSummary
from titanrun.components.data.token_records import (
    ID_FACTOR,
    IN_LOSS,
    STARTS_DOCUMENT,
    find_document_boundaries,
)
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error


class ConcatChunkedDataset:
    """Consecutive, non-overlapping windows of `sample_length` = seq_len + 1 ids.

    The rest at the end is dropped. The last id of a window is a label only, the first id of the
    next one an input only. Documents continue across windows, and attention crosses documents.
    """

    def __init__(
        self,
        tokens: TokenStream,
        *,
        sample_length: int,
        summary: TokenSummary,
        file: UnchangedData,
    ) -> None:
        self._tokens = tokens
        self._file = file
        self._sample_length = sample_length
        self.fingerprint = summary.compute_fingerprint(sample_length)
        self.max_token_id = summary.max_token_id

    def __len__(self) -> int:
        return len(self._tokens) // self._sample_length

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        assert 0 <= index < len(self)
        start = index * self._sample_length
        return self._tokens[start : start + self._sample_length].astype(np.int64)

    def check(self) -> None:
        """Raise a data problem if the file has changed since it was opened."""
        self._file.check()


class DocumentChunkedDataset(ConcatChunkedDataset):
    """Windows over a stream of encoded documents, with boundaries between documents.

    No label belongs to another document, and positions restart with each document. A document that
    continues into the next window restarts there.
    """

    def __init__(
        self,
        tokens: TokenStream,
        *,
        sample_length: int,
        summary: TokenSummary,
        max_token_id: int,
        file: UnchangedData,
    ) -> None:
        super().__init__(tokens, sample_length=sample_length, summary=summary, file=file)
        self.fingerprint = f"{self.fingerprint} documents"
        self.max_token_id = max_token_id

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Return ids, loss mask and positions, [3, seq_len + 1]."""
        return split_channels(super().__getitem__(index))

    def locate_pieces(self, index: int) -> list[DocumentPiece]:
        """Return the document of each span of a window."""
        first, end = index * self._sample_length, (index + 1) * self._sample_length
        within = slice(*np.searchsorted(self._documents[0], [first + 1, end]))
        starts = [first, *self._documents[0][within].tolist()]
        return locate_spans(self._documents, starts, np.diff(starts, append=end).tolist())

    @cached_property
    def _documents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return find_document_boundaries(self._tokens)


def split_channels(coded: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids, loss mask and positions of encoded tokens, [3, tokens].

    The first token has position 0, whether or not it begins a document.
    """
    places = np.arange(len(coded))
    begins = np.maximum.accumulate(np.where(coded & STARTS_DOCUMENT, places, 0))
    return np.stack([coded // ID_FACTOR, coded & IN_LOSS, places - begins])


def build_document_chunks(
    tokens: TokenStream,
    *,
    sample_length: int,
    summary: TokenSummary,
    max_token_id: int,
    source: str,
    file: UnchangedData,
) -> DocumentChunkedDataset:
    """Build the windows over a stream of encoded documents with ids up to `max_token_id`."""
    check_stream_length(tokens, sample_length=sample_length, source=source)
    return DocumentChunkedDataset(
        tokens, sample_length=sample_length, summary=summary, max_token_id=max_token_id, file=file
    )


def build_token_chunks(
    tokens: TokenStream,
    *,
    sample_length: int,
    summary: TokenSummary,
    source: str,
    file: UnchangedData,
) -> ConcatChunkedDataset:
    """Build the windows over a stream. Raise a data problem if it is too short for one."""
    check_stream_length(tokens, sample_length=sample_length, source=source)
    return ConcatChunkedDataset(tokens, sample_length=sample_length, summary=summary, file=file)


def check_stream_length(tokens: TokenStream, *, sample_length: int, source: str) -> None:
    """Raise a data problem if a stream is too short for one window."""
    if len(tokens) < sample_length:
        message = (
            f"'{source}' has {pluralize(len(tokens), 'token')}, one sequence of seq_len "
            f"{sample_length - 1} needs {sample_length}"
        )
        raise problem_error("data", message, hint="use more data or a smaller seq_len")
