"""Lines of files of bytes, plain or compressed, from any offset on."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from titanrun.components.data.spec.json_lines import not_utf8_error

BLOCK_BYTES = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineReader:
    """Lines of a file of bytes, with the offset after the last one that was returned.

    A line ends with a line feed, a carriage return, or both, as in Python's text files.
    """

    def __init__(self, opened: BinaryIO, offset: int) -> None:
        self._opened, self.offset = opened, offset

    def __iter__(self) -> Iterator[bytes]:
        rest: list[bytes] = []
        at_start = self.offset == 0
        while block := self._opened.read(BLOCK_BYTES):
            if at_start and block.startswith(BYTE_ORDER_MARK):
                block = block[len(BYTE_ORDER_MARK) :]
                self.offset += len(BYTE_ORDER_MARK)
            at_start = False
            if not block:
                continue
            if rest and rest[-1].endswith(b"\r"):
                # only now it is known whether a line feed belongs to it
                block, rest = b"".join([*rest, block]), []
            *lines, last = block.splitlines(keepends=True)
            # a rank waits in the middle of a block of each of its lanes
            del block
            if rest and lines:
                lines[0], rest = b"".join([*rest, lines[0]]), []
            lines.reverse()
            while lines:
                line = lines.pop()
                self.offset += len(line)
                yield line
            if last.endswith(b"\n"):
                last, rest = b"".join([*rest, last]), []
                self.offset += len(last)
                yield last
            else:
                rest.append(last)
        if rest:
            last = b"".join(rest)
            self.offset += len(last)
            yield last


def open_lines(opened: BinaryIO, name: str, offset: int) -> LineReader:
    """Open the lines of a file from `offset` on, or from the beginning of a compressed one."""
    suffix = Path(name).suffix.lower()
    if suffix == ".gz":
        return LineReader(gzip.GzipFile(fileobj=opened), 0)  # type: ignore[arg-type]
    if suffix == ".zst":
        return LineReader(pa.input_stream(opened, compression="zstd"), 0)
    opened.seek(max(0, offset))
    return LineReader(opened, max(0, offset))


def is_seekable(name: str) -> bool:
    """Return whether a file of lines can be read from an offset."""
    return Path(name).suffix.lower() not in (".gz", ".zst")


def decode_line(line: bytes, place: str) -> str:
    """Return a line as text."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise not_utf8_error(place) from None
