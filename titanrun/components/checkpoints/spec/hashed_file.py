"""Files that are hashed while they are written.

They are on disk, or in object storage, when they are closed.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, cast

import xxhash

from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    StoragePath,
    translate_read_errors,
    translate_store_errors,
)

BLOCK_BYTES = 16 * 1024**2
# fits into a processor's cache
WRITE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and digest of a file."""

    size: int
    xxh3_128: str


class HashedFile:
    """New file for writing, with a digest of the written bytes.

    The bytes on disk are compared with the digest later.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._file = path.open("xb")
        self._digest = xxhash.xxh3_128()
        self._size = 0
        self._is_closed = False
        # error of the disk, for callers that replace it by another one
        self.write_error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append block by block: a block is still in the processor's cache when it is copied."""
        content = memoryview(data).cast("B")
        before = self._size
        for start in range(0, len(content), WRITE_BYTES):
            block = content[start : start + WRITE_BYTES]
            self._digest.update(block)
            try:
                self._size += self._write_block(block)
            except OSError as error:
                self.write_error = error
                raise
        return self._size - before

    def _write_block(self, data: bytes | bytearray | memoryview) -> int:
        if isinstance(self._path, Path):
            return self._file.write(data)
        with translate_store_errors(self._path):
            # some stores' streams return nothing
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Flush buffered bytes to the operating system.

        A closed file has none: torch flushes it again when it frees what wrapped it.
        """
        if not self._is_closed:
            self._file.flush()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Wait until everything is on disk, or in object storage, then close."""
        if self._is_closed:
            return
        self._is_closed = True
        if isinstance(self._path, StoragePath):
            with translate_store_errors(self._path):
                self._file.close()
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def discard(self) -> None:
        """Close without waiting for the disk.

        What object storage keeps of the file is deleted with its folder.
        """
        if isinstance(self._path, Path):
            self._is_closed = True
            self._file.close()
        elif not self._is_closed:
            self._is_closed = True
            with suppress(OSError), translate_store_errors(self._path):
                self._file.close()

    @property
    def entry(self) -> FileEntry:
        """Size and digest of the written bytes."""
        return FileEntry(self._size, self._digest.hexdigest())


def write_hashed_file(path: AnyPath, content: bytes) -> FileEntry:
    """Write a new file of these bytes; it is on disk when this returns."""
    file = HashedFile(path)
    try:
        file.write(content)
        file.close()
    finally:
        file.discard()
    return file.entry


def compute_file_xxh3(path: AnyPath) -> str:
    """Return the digest of a file on disk."""
    digest = xxhash.xxh3_128()
    buffer: Any = memoryview(bytearray(BLOCK_BYTES))
    with translate_read_errors(path), path.open("rb", buffering=0) as file:
        unbuffered = cast(RawIOBase, file)
        while count := unbuffered.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def compute_text_xxh3(text: str) -> str:
    """Return the digest of a text."""
    return xxhash.xxh3_128(text.encode()).hexdigest()
