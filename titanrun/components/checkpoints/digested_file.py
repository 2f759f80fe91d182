"""Files whose digest is taken while they are written, and that are on disk, or in a store, when they are closed."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from titanrun.components.checkpoints.addresses import Address, Place, reading, store_errors

BLOCK_BYTES = 16 * 1024**2
# fits into a processor's cache
WRITE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and digest of a file."""

    size: int
    xxh3_128: str


class DigestedFile:
    """A new file to write into. The digest is that of the bytes handed in: what the disk makes of them is compared with it later."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self._file = path.open("xb")
        self._digest = xxhash.xxh3_128()
        self._size = 0
        self._is_closed = False
        # what the disk said, for callers that make another error of it
        self.failure: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Appends, block by block: what was just summed up is still in the processor's cache when the system copies it."""
        content = memoryview(data).cast("B")
        before = self._size
        for start in range(0, len(content), WRITE_BYTES):
            block = content[start : start + WRITE_BYTES]
            self._digest.update(block)
            try:
                self._size += self._put(block)
            except OSError as error:
                self.failure = error
                raise
        return self._size - before

    def _put(self, data: bytes | bytearray | memoryview) -> int:
        if isinstance(self._path, Path):
            return self._file.write(data)
        with store_errors(self._path):
            # some stores' streams give nothing back
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Hands over to the system what is buffered."""
        self._file.flush()

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Waits until everything is on disk, or in the store, then closes."""
        if self._is_closed:
            return
        self._is_closed = True
        if isinstance(self._path, Address):
            with store_errors(self._path):
                self._file.close()
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def discard(self) -> None:
        """Closes without waiting for the disk. What a store keeps of the file is cleared away with its folder."""
        if isinstance(self._path, Path):
            self._file.close()
        elif not self._is_closed:
            self._is_closed = True
            with suppress(OSError), store_errors(self._path):
                self._file.close()

    @property
    def entry(self) -> FileEntry:
        """Size and digest of what was written."""
        return FileEntry(self._size, self._digest.hexdigest())


def write_file(path: Place, content: bytes) -> FileEntry:
    """A new file of these bytes, on disk when this returns."""
    file = DigestedFile(path)
    try:
        file.write(content)
        file.close()
    finally:
        file.discard()
    return file.entry


def digest_of(path: Place) -> str:
    """The digest of a file as it lies there."""
    digest = xxhash.xxh3_128()
    buffer: Any = memoryview(bytearray(BLOCK_BYTES))
    with reading(path), path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def text_digest(text: str) -> str:
    """The digest of a text."""
    return xxhash.xxh3_128(text.encode()).hexdigest()
