"""A stream of token ids cut into rows."""

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.token_file import TokenSummary
from titanrun.components.data.watched_file import WatchedFile
from titanrun.config.counted import counted
from titanrun.config.problems import fail


class Windows:
    """Consecutive windows of `row_length` = seq_len + 1 ids that do not overlap; what is left at the end is dropped.

    The last id of a window is a label only, and the first of the next one an input only. Documents run on across windows, and
    attention runs across documents.
    """

    def __init__(self, tokens: NDArray[np.integer], *, row_length: int, summary: TokenSummary, file: WatchedFile) -> None:
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


def cut_windows(tokens: NDArray[np.integer], *, row_length: int, summary: TokenSummary, source: str, file: WatchedFile) -> Windows:
    """Windows over a stream. Raises a data problem where it is too short for one."""
    if len(tokens) < row_length:
        message = f"'{source}' has {counted(len(tokens), 'token')}, one row of seq_len {row_length - 1} takes {row_length}"
        raise fail("data", message, help="use more data or a smaller seq_len")
    return Windows(tokens, row_length=row_length, summary=summary, file=file)
