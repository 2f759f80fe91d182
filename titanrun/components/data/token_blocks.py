"""Digest of each block of a token index, compared when the block is first read.

A disk, a copy or a person may change bytes without changing the size of a file. Reading a whole
index at every start would take longer than the start, so each block is checked when it is used.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from titanrun.components.data.token_writer import BLOCK_BYTES, write_file_atomically
from titanrun.config.problems import problem_error
from titanrun.distributed.heartbeat import send_heartbeat

DIGEST_BYTES = 16
HEARTBEAT_BLOCKS = 1024
INDEX_HINT = (
    "start the same command again: it tokenizes the files again and resumes "
    "from its last checkpoint; titanrun data build --repair RECIPE tokenizes now"
)


class VerifiedTokens:
    """Token ids of an index, of which a slice is checked before it is returned.

    Args:
        tokens: All ids, mapped, of shape [tokens].
        digests: Digest of each block of `BLOCK_BYTES` bytes.
        path: File of the ids, for messages.
        discard: Called before a problem is raised, so that the next start builds the index again.
        damage_hint: What to do about a changed block.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        digests: bytes,
        *,
        path: Path,
        discard: Callable[[], None],
        damage_hint: str = INDEX_HINT,
    ) -> None:
        self._tokens, self._digests = tokens, digests
        self._path, self._discard, self._damage_hint = path, discard, damage_hint
        self._block_tokens = BLOCK_BYTES // tokens.itemsize
        # bytes, not an array: a search of a few takes a tenth of the time
        self._is_checked = bytearray(len(digests) // DIGEST_BYTES)
        self._num_unchecked = len(self._is_checked)

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """Type of the ids."""
        return self._tokens.dtype

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, span: slice) -> NDArray[np.integer]:
        """Return consecutive ids.

        Raises:
            ProblemsFound: A data problem if a block is not what was written.
        """
        if self._num_unchecked:
            start, stop, step = span.indices(len(self._tokens))
            assert step == 1
            first, last = start // self._block_tokens, -(-stop // self._block_tokens)
            if self._is_checked.find(0, first, last) >= 0:
                self._check_blocks(first, last)
        return self._tokens[span]

    def check_again(self) -> None:
        """Check every block again when it is next read, since the file may have changed."""
        self._is_checked = bytearray(len(self._is_checked))
        self._num_unchecked = len(self._is_checked)

    def _check_blocks(self, first: int, last: int) -> None:
        for number in range(first, last):
            if self._is_checked[number]:
                continue
            place = number * DIGEST_BYTES
            block = self._tokens[number * self._block_tokens : (number + 1) * self._block_tokens]
            if compute_digest(block) != self._digests[place : place + DIGEST_BYTES]:
                with suppress(OSError):
                    self._discard()
                begin = number * self._block_tokens
                raise problem_error(
                    "data",
                    f"'{self._path}' holds other tokens than were written: block {number}, "
                    f"tokens {begin} to {begin + len(block) - 1}",
                    path=("path",),
                    hint=self._damage_hint,
                )
            self._is_checked[number] = 1
            self._num_unchecked -= 1


def compute_digest(content: Any) -> bytes:
    """Return the digest of a block: bytes, or an array that is contiguous."""
    return xxhash.xxh3_128(content).digest()


def hash_blocks(tokens: NDArray[np.integer]) -> bytes:
    """Return the digests of all blocks, which reads all ids."""
    return b"".join(iter_block_digests(tokens))


def iter_block_digests(tokens: NDArray[np.integer]) -> Iterator[bytes]:
    """Yield the digest of each block."""
    length = BLOCK_BYTES // tokens.itemsize
    for number, start in enumerate(range(0, len(tokens), length)):
        if number % HEARTBEAT_BLOCKS == 0:
            send_heartbeat()
        yield compute_digest(tokens[start : start + length])


def find_damaged_block(tokens: NDArray[np.integer], digests: bytes) -> int | None:
    """Return the index of the first block with another digest, which reads all ids, or None."""
    for number, digest in enumerate(iter_block_digests(tokens)):
        if digest != digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]:
            return number
    return None


def write_block_digests(
    path: Path, tokens: NDArray[np.integer], digests: bytes, *, index_digest: str
) -> None:
    """Write the digests of the blocks of an index.

    Args:
        path: The file, which is replaced.
        tokens: Ids of the index, of which only type and number are used.
        digests: Digests of all blocks.
        index_digest: Digest in the record of the index.
    """
    content = compute_head(tokens, index_digest) + digests
    write_file_atomically(path, compute_digest(content) + content)


def read_block_digests(
    path: Path, tokens: NDArray[np.integer], *, index_digest: str
) -> bytes | None:
    """Return the digests of the blocks of an index, None if they are missing or of other ids."""
    try:
        written = path.read_bytes()
    except OSError:
        return None
    content = written[DIGEST_BYTES:]
    digests = content[DIGEST_BYTES:]
    blocks = -(-tokens.nbytes // BLOCK_BYTES)
    is_whole = (
        written[:DIGEST_BYTES] == compute_digest(content)
        and content[:DIGEST_BYTES] == compute_head(tokens, index_digest)
        and len(digests) == blocks * DIGEST_BYTES
    )
    return digests if is_whole else None


def compute_head(tokens: NDArray[np.integer], index_digest: str) -> bytes:
    """Return the digest that ties the digests to the type and number of ids of one index."""
    return compute_digest(f"{tokens.dtype.str} {tokens.shape} {index_digest}".encode())
