"""Token ids in a .npy file: mapped into memory, checked, and told apart from others."""

import hashlib
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.config.problems import fail

READ_WHOLE = 256 * 2**20
"""Bytes up to which a file is read whole when it is opened: about a quarter of a second. Of a larger one as many bytes are sampled."""
BLOCK = 256 * 2**10
"""Bytes read at a time."""
UNREADABLE = (OSError, ValueError, TypeError, OverflowError, SyntaxError, tokenize.TokenError)
"""What numpy raises for a damaged header, which is a Python literal."""


@dataclass(frozen=True, slots=True)
class TokenSummary:
    """What was seen when token ids were read through: a hash of them and the highest one."""

    digest: str
    max_token_id: int

    def fingerprint(self, row_length: int) -> str:
        """Hash of these token ids cut into rows of `row_length`."""
        return hashlib.sha256(f"{self.digest} in rows of {row_length}".encode()).hexdigest()


def map_tokens(path: Path) -> NDArray[np.integer]:
    """The array in a .npy file, mapped read-only. Raises a data problem where it cannot hold token ids."""
    help = "save the ids with numpy.save as an integer array of one or two dimensions"
    if not path.exists():
        raise fail(
            "data",
            f"there is no file '{path}'",
            path=("path",),
            help=f"paths are relative to {Path.cwd()}",
        )
    if not path.is_file():
        raise fail(
            "data",
            f"'{path}' is a folder, not a .npy file",
            path=("path",),
            help="name the .npy file",
        )
    try:
        # as a plain array: a memmap's own indexing takes three times as long
        tokens = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except UNREADABLE as error:
        raise fail(
            "data", f"'{path}' cannot be read as a .npy file: {error}", path=("path",), help=help
        ) from None
    if not np.issubdtype(tokens.dtype, np.integer):
        raise fail(
            "data", f"'{path}' holds {tokens.dtype}, not integers", path=("path",), help=help
        )
    if tokens.ndim not in (1, 2):
        raise fail("data", f"'{path}' has {tokens.ndim} dimensions", path=("path",), help=help)
    return tokens


def summarise(tokens: NDArray[np.integer], *, source: str) -> TokenSummary:
    """Reads token ids through, all or a sample of them. Raises a data problem where one is negative."""
    digest = hashlib.sha256(f"{tokens.dtype.str} {tokens.shape}".encode())
    smallest, largest = 0, -1
    for block in blocks(tokens.ravel(order="K")):
        digest.update(block.tobytes())
        smallest, largest = min(smallest, int(block.min())), max(largest, int(block.max()))
    if smallest < 0:
        raise fail(
            "data",
            f"'{source}' holds the token id {smallest}",
            path=("path",),
            help="token ids start at 0",
        )
    return TokenSummary(digest.hexdigest(), largest)


def blocks(stream: NDArray[np.integer]) -> Iterator[NDArray[np.integer]]:
    """Consecutive blocks of a stream; of a very large one evenly spaced blocks, the first and the last among them."""
    length = BLOCK // stream.itemsize
    starts = range(0, len(stream), length)
    if stream.nbytes > READ_WHOLE:
        starts = np.linspace(0, len(stream) - length, READ_WHOLE // BLOCK).astype(np.int64).tolist()
    for start in starts:
        yield stream[start : start + length]
