"""Remote files as seekable files, read in ranges of bytes."""

import io
from typing import Any, Protocol

from titanrun.components.data.source_faults import RetryPolicy, SourceFault

BLOCK_BYTES = 2 * 2**20
"""Bytes that are requested at a time if a file is read from one end to the other."""


class RangeSource(Protocol):
    """Remote file from which ranges of bytes can be requested."""

    def fetch(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`.

        Raises:
            SourceFault: If the request fails.
        """
        ...


class RemoteFile(io.RawIOBase):
    """Seekable file whose bytes are requested as they are read.

    Requests that fail are repeated. It holds at most one block in memory.

    Args:
        source: Where bytes are requested.
        size: Size of the file in bytes.
        name: Name for messages.
        retries: How long failing requests are repeated.
    """

    def __init__(self, source: RangeSource, *, size: int, name: str, retries: RetryPolicy) -> None:
        super().__init__()
        self._source, self._size, self._name, self._retries = source, size, name, retries
        self._position = 0
        self._block, self._block_start = b"", 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the file.

        Raises:
            ProblemsFound: A data problem if they cannot be read.
        """
        end = self._size
        if size is not None and size >= 0:
            end = min(self._size, self._position + size)
        parts = []
        while self._position < end:
            part = self._get_part(end)
            self._position += len(part)
            parts.append(part)
        return b"".join(parts)

    def _get_part(self, end: int) -> bytes:
        """Return some bytes from the position on, at most up to `end`."""
        start, block_end = self._block_start, self._block_start + len(self._block)
        if not start <= self._position < block_end:
            # read ahead only where the last block ended: other readers jump
            ahead = BLOCK_BYTES if self._position in (0, block_end) else 0
            self._fetch_block(self._position, min(self._size, max(end, self._position + ahead)))
            start = self._block_start
        return self._block[self._position - start : end - start]

    def _fetch_block(self, start: int, end: int) -> None:
        end = min(end, start + BLOCK_BYTES)
        self._block, self._block_start = b"", start
        self._block = self._retries.request(
            lambda: fetch_exactly(self._source, start, end), name=self._name
        )
        self._retries.counts.num_bytes += end - start


def fetch_exactly(source: RangeSource, start: int, end: int) -> bytes:
    """Return a range of bytes. Fewer are a fault: a connection was closed early."""
    content = source.fetch(start, end)
    if len(content) != end - start:
        reason = f"{len(content):,} of {end - start:,} bytes arrived"
        raise SourceFault("unreachable", reason)
    return content
