"""Remote files are the bytes of the file, requested in few ranges and no more than needed."""

import io
import random

from titanrun.components.data.remote_file import BLOCK_BYTES, RemoteFile
from titanrun.components.data.source_faults import RetryPolicy

CONTENT = random.Random(0).randbytes(3 * BLOCK_BYTES + 1000)


class CountingSource:
    """The content, and which ranges were requested."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> bytes:
        self.ranges.append((start, end))
        return CONTENT[start:end]


def opened() -> tuple[RemoteFile, CountingSource]:
    source = CountingSource()
    file = RemoteFile(source, size=len(CONTENT), name="a", retries=RetryPolicy(1))
    return file, source


def test_a_file_read_to_its_end_is_requested_once_in_whole_blocks() -> None:
    file, source = opened()
    parts = []
    while part := file.read(1000):
        parts.append(part)
    assert b"".join(parts) == CONTENT
    starts = [0, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES]
    assert source.ranges == list(zip(starts, [*starts[1:], len(CONTENT)], strict=True))


def test_after_a_jump_only_what_is_read_is_requested() -> None:
    file, source = opened()
    file.seek(-8, io.SEEK_END)
    assert file.read(8) == CONTENT[-8:]
    file.seek(BLOCK_BYTES)
    assert file.read(500) == CONTENT[BLOCK_BYTES : BLOCK_BYTES + 500]
    assert source.ranges == [
        (len(CONTENT) - 8, len(CONTENT)),
        (BLOCK_BYTES, BLOCK_BYTES + 500),
    ]
    # going on where the last range ended is reading from one end to the other
    assert file.read(1) == CONTENT[BLOCK_BYTES + 500 : BLOCK_BYTES + 501]
    assert source.ranges[2] == (BLOCK_BYTES + 500, 2 * BLOCK_BYTES + 500)
    file.seek(BLOCK_BYTES + 600)
    assert file.read(10) == CONTENT[BLOCK_BYTES + 600 : BLOCK_BYTES + 610]
    assert len(source.ranges) == 3


def test_random_reads_are_those_of_a_local_file() -> None:
    (file, _), local, draw = opened(), io.BytesIO(CONTENT), random.Random(1)
    for _ in range(200):
        place, size = draw.randrange(len(CONTENT)), draw.choice([1, 7, 4096, BLOCK_BYTES + 1])
        assert file.seek(place) == local.seek(place)
        assert file.read(size) == local.read(size)
        assert file.tell() == local.tell()
