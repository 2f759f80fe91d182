"""Faults of the files of a stream, put into a test process before it runs the worker."""

import json
import time
from pathlib import Path
from typing import Any

from tests.faults.seams import die
from titanrun.components.data import (
    http_source,
    late_data,
    line_reader,
    remote_file,
    source_faults,
)
from titanrun.components.data.http_source import HttpAnswer, HttpSource
from titanrun.components.data.lane_loader import LaneLoader
from titanrun.components.data.local_stream_files import CountedFile
from titanrun.components.data.source_faults import SourceFault

# few bytes at a time, so that a short run makes many requests
BLOCK_BYTES = 150


def requests_fail(first: int, seconds: float) -> None:
    """Requests to remote files fail from the one with a number on, for some seconds."""
    remote_file.BLOCK_BYTES = line_reader.BLOCK_BYTES = BLOCK_BYTES
    source_faults.FIRST_DELAY_SECONDS = 0.2
    answer, counts = HttpSource.request, {"made": 0, "end": 0.0}

    def failing(self: HttpSource, start: int, end: int) -> HttpAnswer:
        counts["made"] += 1
        if counts["made"] == first:
            counts["end"] = time.monotonic() + seconds
        if time.monotonic() < counts["end"]:
            raise SourceFault("unreachable", "HTTP 503 Service Unavailable")
        return answer(self, start, end)

    http_source.HttpSource.request = failing  # type: ignore[method-assign]


def disk_is_slow(first: int, seconds: float) -> None:
    """The read with a number from local files of a stream takes some seconds."""
    line_reader.BLOCK_BYTES = BLOCK_BYTES
    late_data.LATE_SECONDS = 2.0
    read, counts = CountedFile.readinto, {"made": 0}

    def slow(self: CountedFile, buffer: Any) -> int:
        if self.counts is None:
            return read(self, buffer)
        counts["made"] += 1
        if counts["made"] == first:
            time.sleep(seconds)
        return read(self, memoryview(buffer)[:BLOCK_BYTES])

    CountedFile.readinto = slow  # type: ignore[method-assign]


def sequences_are_noted(file: str, dies_in: int) -> None:
    """Every sequence that this rank trains on goes into a file, a line of [step, ids] a step.

    It dies when it is to read a step.
    """
    read = LaneLoader.next_samples

    def noting(self: LaneLoader) -> Any:
        step = self._rows_read // self.global_batch_size + 1
        if step == dies_in:
            die()
        rows = read(self)
        kept = [row if row.ndim == 1 else row[0][row[0] > 0] for row in rows]
        with Path(file).open("a", encoding="utf-8") as noted:
            noted.write(json.dumps([step, [row.tolist() for row in kept]]) + "\n")
        return rows

    LaneLoader.next_samples = noting  # type: ignore[method-assign]
