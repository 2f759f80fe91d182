"""A stream of token ids cut into rows."""

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.coded import BEGINS, CODES, COUNTS
from titanrun.components.data.token_file import TokenSummary
from titanrun.components.data.watched_file import WatchedFile
from titanrun.config.counted import counted
from titanrun.config.problems import fail


class Windows:
    """Consecutive windows of `row_length` = seq_len + 1 ids that do not overlap; what is left at the end is dropped.

    The last id of a window is a label only, and the first of the next one an input only. Documents run on across windows, and
    attention runs across documents.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        *,
        row_length: int,
        summary: TokenSummary,
        file: WatchedFile,
    ) -> None:
        self._tokens = tokens
        self._file = file
        self._row_length = row_length
        self.fingerprint = summary.fingerprint(row_length)
        self.max_token_id = summary.max_token_id

    def __len__(self) -> int:
        return len(self._tokens) // self._row_length

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        assert 0 <= index < len(self)
        start = index * self._row_length
        return self._tokens[start : start + self._row_length].astype(np.int64)

    def check(self) -> None:
        """Raises a data problem where the file has changed since it was opened."""
        self._file.check()


class DocumentWindows(Windows):
    """The same windows over a stream of coded documents: no label is of another document, and positions start anew with each.

    A document that runs on into the next window begins anew there.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        *,
        row_length: int,
        summary: TokenSummary,
        highest: int,
        file: WatchedFile,
    ) -> None:
        super().__init__(tokens, row_length=row_length, summary=summary, file=file)
        self.fingerprint = f"{self.fingerprint} documents"
        self.max_token_id = highest

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Ids, which of them count, and positions, [3, seq_len + 1]."""
        coded = super().__getitem__(index)
        places = np.arange(len(coded))
        begins = np.maximum.accumulate(np.where(coded & BEGINS, places, 0))
        return np.stack([coded // CODES, coded & COUNTS, places - begins])


def cut_documents(
    tokens: NDArray[np.integer],
    *,
    row_length: int,
    summary: TokenSummary,
    highest: int,
    source: str,
    file: WatchedFile,
) -> DocumentWindows:
    """Windows over a stream of coded documents, whose highest id is `highest`."""
    check_length(tokens, row_length=row_length, source=source)
    return DocumentWindows(
        tokens, row_length=row_length, summary=summary, highest=highest, file=file
    )


def cut_windows(
    tokens: NDArray[np.integer],
    *,
    row_length: int,
    summary: TokenSummary,
    source: str,
    file: WatchedFile,
) -> Windows:
    """Windows over a stream. Raises a data problem where it is too short for one."""
    check_length(tokens, row_length=row_length, source=source)
    return Windows(tokens, row_length=row_length, summary=summary, file=file)


def check_length(tokens: NDArray[np.integer], *, row_length: int, source: str) -> None:
    """Raises a data problem where a stream is too short for one window."""
    if len(tokens) < row_length:
        message = f"'{source}' has {counted(len(tokens), 'token')}, one row of seq_len {row_length - 1} takes {row_length}"
        raise fail("data", message, help="use more data or a smaller seq_len")
