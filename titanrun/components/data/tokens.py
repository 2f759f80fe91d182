"""Rows from a .npy file of token ids that was made elsewhere."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import TokensDatasetConfig
from titanrun.components.data.rows import Rows
from titanrun.components.data.token_file import TokenSummary, map_tokens, summarise
from titanrun.components.data.watched_file import WatchedFile, state_of
from titanrun.components.data.windows import cut_windows
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.counted import counted
from titanrun.config.problems import fail


class GivenRows:
    """The rows of a 2-D array, as they are."""

    def __init__(
        self, tokens: NDArray[np.integer], *, summary: TokenSummary, file: WatchedFile
    ) -> None:
        self._tokens = tokens
        self._file = file
        self.fingerprint = summary.fingerprint(tokens.shape[1])
        self.max_token_id = summary.max_token_id

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        row: NDArray[np.integer] = self._tokens[index]
        return row.astype(np.int64)

    def check(self) -> None:
        """Raises a data problem where the file has changed since it was opened."""
        self._file.check()


def tokens_rows(
    config: TokensDatasetConfig,
    *,
    row_length: int,
    tokenizer: Tokenizer | None = None,
    cache_folder: Path | None = None,
) -> Rows:
    """The rows of a 2-D array in the given order, or the windows of a 1-D one.

    Raises a data problem, placed relative to the dataset's config, where the file does not fit. Tokenizer and cache stay unused.
    """
    path = Path(config.path)
    state = state_of(path)
    tokens = map_tokens(path)
    if tokens.ndim == 2:
        check_width(tokens.shape[1], row_length, config.path)
    summary = summarise(tokens, source=config.path)
    file = WatchedFile(path, state=state, digest=summary.digest)
    if tokens.ndim == 1:
        return cut_windows(
            tokens, row_length=row_length, summary=summary, source=config.path, file=file
        )
    return GivenRows(tokens, summary=summary, file=file)


def check_width(width: int, row_length: int, source: str) -> None:
    """A given row holds the inputs and one more label, so it must be one longer than seq_len."""
    if width == row_length:
        return
    help = f"set seq_len to {width - 1}" if width > 1 else "save rows of seq_len + 1 ids"
    message = f"'{source}' has rows of {counted(width, 'token')}, seq_len {row_length - 1} takes {row_length}"
    raise fail("data", message, path=("path",), help=help)
