"""Writer of a stream of token ids to a .npy file of initially unknown length."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

LENGTH_PLACEHOLDER = 2**62
"""Length that no file reaches, to reserve space in the header that is written first."""
BLOCK_BYTES = 128 * 2**10
"""Bytes of ids that share a digest: Linux reads as many ahead, so a check costs no more reads."""


class BlockHasher:
    """Digests of consecutive blocks of `BLOCK_BYTES` bytes, from bytes as they are written."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._block = xxhash.xxh3_128()
        self._size = 0

    def update(self, data: bytes) -> None:
        """Add bytes."""
        rest = memoryview(data)
        while len(rest):
            part = rest[: BLOCK_BYTES - self._size]
            self._block.update(part)
            self._size += len(part)
            rest = rest[len(part) :]
            if self._size == BLOCK_BYTES:
                self._end_block()

    def finish(self) -> bytes:
        """Return the digests of all blocks. The last block may be shorter."""
        if self._size:
            self._end_block()
        return b"".join(self._digests)

    def _end_block(self) -> None:
        self._digests.append(self._block.digest())
        self._block, self._size = xxhash.xxh3_128(), 0


class TokenWriter:
    """Writer that appends ids to an open .npy file; `finish` completes the file."""

    def __init__(self, file: BinaryIO, *, vocab_size: int) -> None:
        self._file = file
        self.blocks = BlockHasher()
        self.dtype = np.dtype(
            "<u2" if vocab_size <= 2**16 else "<u4" if vocab_size <= 2**32 else "<u8"
        )
        self.count = 0
        self._write_header(LENGTH_PLACEHOLDER)
        self._header_size = file.tell()

    def write(self, ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Append ids."""
        block = np.asarray(ids, dtype=self.dtype)
        data = block.tobytes()
        self._file.write(data)
        self.blocks.update(data)
        self.count += len(block)

    def finish(self) -> None:
        """Write the true length into the header and flush everything to disk."""
        self._file.seek(0)
        self._write_header(self.count)
        assert self._file.tell() == self._header_size
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write_header(self, length: int) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def make_temporary_path(path: Path) -> Path:
    """Return a path beside `path` that no other process uses.

    Processes in containers and on other machines may have the same number.
    """
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")


def write_file_atomically(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees a part of it."""
    temporary = make_temporary_path(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a machine crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
