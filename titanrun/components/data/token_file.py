"""Token ids in a .npy file: memory mapping, checks and digests."""

import hashlib
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from titanrun.config.near_path import explain_missing_path
from titanrun.config.problems import problem_error

MAX_FULL_READ_BYTES = 256 * 2**20
"""Bytes up to which a file is read completely when it is opened, about a quarter of a second. Of a
larger file, as many bytes are sampled."""
HASH_BLOCK_BYTES = 256 * 2**10
"""Bytes read at a time."""
NPY_READ_ERRORS = (OSError, ValueError, TypeError, OverflowError, SyntaxError, tokenize.TokenError)
"""Errors of numpy for a damaged header, which is a Python literal."""


class TokenStream(Protocol):
    """Consecutive token ids: an array of one dimension, or `VerifiedTokens`."""

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """Type of the ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> NDArray[np.integer]: ...


@dataclass(frozen=True, slots=True)
class TokenSummary:
    """Hash and highest id of token ids, from reading them once."""

    digest: str
    max_token_id: int

    def compute_fingerprint(self, sample_length: int) -> str:
        """Return a hash of these token ids split into sequences of `sample_length`."""
        return hashlib.sha256(f"{self.digest} in rows of {sample_length}".encode()).hexdigest()


def open_token_memmap(path: Path) -> NDArray[np.integer]:
    """Return the array in a .npy file, mapped read-only.

    Raises:
        ProblemsFound: A data problem if it cannot hold token ids.
    """
    hint = "save the ids with numpy.save as an integer array of one or two dimensions"
    if not path.exists():
        raise problem_error(
            "data",
            f"file not found: '{path}'",
            path=("path",),
            hint=explain_missing_path(str(path)),
        )
    if not path.is_file():
        raise problem_error(
            "data",
            f"'{path}' is a folder, not a .npy file",
            path=("path",),
            hint="name the .npy file",
        )
    try:
        # a plain array: indexing a memmap takes three times as long
        tokens = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except NPY_READ_ERRORS as error:
        raise problem_error(
            "data", f"'{path}' cannot be read as a .npy file: {error}", path=("path",), hint=hint
        ) from None
    if not np.issubdtype(tokens.dtype, np.integer):
        raise problem_error(
            "data", f"'{path}' holds {tokens.dtype}, not integers", path=("path",), hint=hint
        )
    if tokens.ndim not in (1, 2):
        raise problem_error(
            "data", f"'{path}' has {tokens.ndim} dimensions", path=("path",), hint=hint
        )
    return tokens


def summarize_tokens(tokens: NDArray[np.integer], *, source: str) -> TokenSummary:
    """Summarize all token ids, or a sample of very many.

    Raises:
        ProblemsFound: A data problem if one is negative.
    """
    return summarize_stream(tokens.ravel(order="K"), tokens.shape, source=source)


def summarize_stream(tokens: TokenStream, shape: tuple[int, ...], *, source: str) -> TokenSummary:
    """Summarize consecutive token ids like those of an array of this shape."""
    digest = hashlib.sha256(f"{tokens.dtype.str} {shape}".encode())
    smallest, largest = 0, -1
    for block in iter_token_blocks(tokens):
        digest.update(block.tobytes())
        smallest, largest = min(smallest, int(block.min())), max(largest, int(block.max()))
    if smallest < 0:
        raise problem_error(
            "data",
            f"'{source}' holds the token id {smallest}",
            path=("path",),
            hint="token ids start at 0",
        )
    return TokenSummary(digest.hexdigest(), largest)


def iter_token_blocks(stream: TokenStream) -> Iterator[NDArray[np.integer]]:
    """Yield consecutive blocks of a stream.

    Of a very large one, yields evenly spaced blocks, including the first and the last.
    """
    length = HASH_BLOCK_BYTES // stream.dtype.itemsize
    starts = range(0, len(stream), length)
    if len(stream) * stream.dtype.itemsize > MAX_FULL_READ_BYTES:
        starts = (
            np.linspace(0, len(stream) - length, MAX_FULL_READ_BYTES // HASH_BLOCK_BYTES)
            .astype(np.int64)
            .tolist()
        )
    for start in starts:
        yield stream[start : start + length]
