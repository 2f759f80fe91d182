"""Spans of data files that are tokenized independently of each other.

A small file is one span, a large jsonl or parquet file has several. They depend on the bytes of the
files only, so that any number of processes and machines agrees on them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from titanrun.components.data.line_reader import LineReader, decode_line
from titanrun.components.data.record_readers import (
    READ_BATCH,
    BadRecordHandler,
    LocatedRecord,
    raise_bad_record,
    unreadable_file_error,
)
from titanrun.components.data.spec.data_files import (
    SourceFile,
    describe_file,
    find_settled_mtime,
)
from titanrun.components.data.spec.file_columns import RequiredColumns
from titanrun.components.data.spec.json_lines import parse_jsonl_line
from titanrun.config.problems import ProblemsFound, problem_error

SPAN_BYTES = 256 * 2**20
"""Size in bytes from which a file has several spans."""
HASH_BYTES = 2**20
PARQUET_ERRORS = (OSError, ValueError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Consecutive records of a file: all of them, or those in a range of its bytes.

    Args:
        file: The file.
        start: Offset of the first byte.
        end: Offset of the byte after the last one, None for a whole file.
        groups: First row group of a parquet file, and the one after the last.
    """

    file: Path
    start: int = 0
    end: int | None = None
    groups: tuple[int, int] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole file."""
        return self.end is None

    @property
    def name(self) -> str:
        """Name for messages."""
        if self.is_whole:
            return str(self.file)
        return f"{self.file} (bytes {self.start:,} to {self.end:,})"


def list_file_spans(files: Sequence[Path]) -> list[FileSpan]:
    """Return the spans of files in order.

    Raises:
        ProblemsFound: A data problem if a file cannot be read.
    """
    found: list[FileSpan] = []
    for file in files:
        try:
            size = file.stat().st_size
            spans = []
            if size > SPAN_BYTES and file.suffix.lower() == ".jsonl":
                spans = split_lines(file, size)
            elif size > SPAN_BYTES and file.suffix.lower() == ".parquet":
                spans = split_row_groups(file, size)
        except PARQUET_ERRORS as error:
            raise unreadable_file_error(file, file.suffix[1:], error) from None
        found += spans if len(spans) > 1 else [FileSpan(file)]
    return found


def split_lines(file: Path, size: int) -> list[FileSpan]:
    """Return the spans of a file of lines, which end after line feeds."""
    spans, start = [], 0
    with file.open("rb") as opened:
        while start < size:
            opened.seek(min(size, start + SPAN_BYTES))
            opened.readline()
            spans.append(FileSpan(file, start, opened.tell()))
            start = opened.tell()
    return spans


def split_row_groups(file: Path, size: int) -> list[FileSpan]:
    """Return the spans of a parquet file, of whole row groups, none if they are not in order."""
    metadata = pq.read_metadata(file)
    starts = [
        min(find_chunk_start(group, number) for number in range(group.num_columns))
        for group in (metadata.row_group(number) for number in range(metadata.num_row_groups))
    ]
    if starts != sorted(starts):
        return []
    spans, first = [], 0
    for number, end in enumerate([*starts[1:], size], start=1):
        start = starts[first] if first else 0
        if end - start >= SPAN_BYTES or number == len(starts):
            spans.append(FileSpan(file, start, end, (first, number)))
            first = number
    return spans


def find_chunk_start(group: pq.RowGroupMetaData, number: int) -> int:
    """Return the offset of the first byte of a column in a row group."""
    column = group.column(number)
    pages = (column.dictionary_page_offset, column.data_page_offset)
    return min(int(offset) for offset in pages if offset)


def describe_span(span: FileSpan, known: SourceFile | None) -> SourceFile:
    """Return the file of a span with the hash of the span, or `known` if the file is unchanged."""
    if span.end is None:
        return describe_file(span.file, known)
    try:
        status = span.file.stat()
        if known is not None and (known.size, known.mtime_ns) == (
            status.st_size,
            status.st_mtime_ns,
        ):
            return known
        mtime_ns = find_settled_mtime(status)
        digest, left = hashlib.sha256(), span.end - span.start
        if span.groups is not None:
            # the schema lies behind the last row group
            digest.update(str(pq.read_schema(span.file)).encode())
        with span.file.open("rb") as opened:
            opened.seek(span.start)
            while left and (block := opened.read(min(left, HASH_BYTES))):
                digest.update(block)
                left -= len(block)
    except PARQUET_ERRORS as error:
        raise unreadable_file_error(span.file, span.file.suffix[1:], error) from None
    return SourceFile(str(span.file), status.st_size, mtime_ns, digest.hexdigest())


def iter_span_records(
    span: FileSpan,
    *,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield the records of a part of a file, with the required columns, or all.

    Raises:
        ProblemsFound: A data problem that names file and place.
    """
    if span.groups is None:
        yield from iter_line_records(span, on_bad_record)
        return
    try:
        yield from iter_group_records(span, span.groups, required)
    except PARQUET_ERRORS as error:
        raise unreadable_file_error(span.file, "parquet", error) from None


def iter_line_records(span: FileSpan, on_bad_record: BadRecordHandler) -> Iterator[LocatedRecord]:
    """Yield one record per non-empty line."""
    with span.file.open("rb") as opened:
        opened.seek(span.start)
        lines = LineReader(opened, span.start)
        for number, line in enumerate(lines, start=1):
            place = f"'{span.file}' line {number} after byte {span.start:,}"
            text = decode_line(line, place)
            if not text.isspace():
                try:
                    record = parse_jsonl_line(text, place)
                except ProblemsFound as error:
                    on_bad_record(error)
                else:
                    yield place, record
            if lines.offset == span.end:
                return
    raise problem_error(
        "data",
        f"'{span.file}' changed while it was read",
        path=("path",),
        hint="start again when it is complete",
    )


def iter_group_records(
    span: FileSpan, groups: tuple[int, int], required: RequiredColumns | None
) -> Iterator[LocatedRecord]:
    """Yield one record per row of consecutive row groups."""
    first, end = groups
    with pq.ParquetFile(span.file, page_checksum_verification=True) as opened:
        number = sum(opened.metadata.row_group(group).num_rows for group in range(first))
        names = set(opened.schema_arrow.names)
        columns = None if required is None else [name for name in required if name in names]
        for batch in opened.iter_batches(READ_BATCH, row_groups=range(first, end), columns=columns):
            for record in batch.to_pylist():
                number += 1
                yield f"'{span.file}' row {number}", record
