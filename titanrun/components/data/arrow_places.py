"""Batches of Arrow files, from any of them on."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import pyarrow as pa


class PlacedBatch(NamedTuple):
    """Batch, and where its file can be read from on, None if only from its beginning.

    The place is the index of the batch in a Feather file, and the offset of its first byte in a
    stream as `save_to_disk` of the datasets library writes it.
    """

    batch: pa.RecordBatch
    place: int | None


def read_placed_batches(opened: BinaryIO, place: int) -> tuple[pa.Schema, Iterator[PlacedBatch]]:
    """Return the schema of an Arrow file and its batches from the one at `place` on, 0 for all."""
    source = pa.PythonFile(opened, mode="r")
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return stream.schema, iter_stream_batches(stream, source, place)
    numbers = range(place, file.num_record_batches)
    return file.schema, (PlacedBatch(file.get_batch(number), number) for number in numbers)


def iter_stream_batches(
    stream: pa.ipc.RecordBatchStreamReader, source: pa.PythonFile, place: int
) -> Iterator[PlacedBatch]:
    """Yield the batches of a stream from the one at `place` on."""
    # the words of a dictionary come before the batches that use them
    can_seek = "dictionary<" not in str(stream.schema)
    if place:
        source.seek(place)
    while True:
        place = source.tell()
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            return
        yield PlacedBatch(batch, place if can_seek else None)
