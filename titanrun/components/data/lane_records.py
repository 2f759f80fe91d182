"""Records of the files of a stream, read from any place in a file.

A record is first only delimited, and parsed when it is needed: a lane skips the records of others.
"""

import csv
import logging
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from titanrun.components.data.arrow_places import read_placed_batches
from titanrun.components.data.lane_plan import PlanFile
from titanrun.components.data.line_reader import (
    LineReader,
    decode_line,
    is_seekable,
    open_lines,
)
from titanrun.components.data.record_readers import LocatedRecord
from titanrun.components.data.source_faults import SourceFault, build_fault_problem
from titanrun.components.data.spec.csv_rows import read_csv_rows
from titanrun.components.data.spec.data_files import get_data_suffix
from titanrun.components.data.spec.file_columns import (
    JSON_ARRAY_START,
    RequiredColumns,
    check_columns,
)
from titanrun.components.data.spec.json_lines import (
    check_json_object,
    parse_json_text,
    parse_jsonl_line,
)
from titanrun.components.data.spec.remote_path import is_remote_path
from titanrun.config.problems import ProblemsFound, problem_error

log = logging.getLogger(__name__)

READ_BATCH = 1024
"""Rows of a parquet or arrow file that are read at a time."""
MAX_WHOLE_FILE_BYTES = 64 * 2**20
"""Largest file of a stream that is read as a whole: a JSON array, or a text file."""
MAX_PLACED_ROWS = 2**24
"""Offsets in an arrow file are the place of a batch, times this, plus the rows of it before."""
CANNOT_SEEK = -1
"""Offset of a record in a file that is read from its beginning, or by row."""
GIVEN_OUT_DAMAGED_HINT = (
    "start again to go on with the file as it is; resume from a checkpoint before those records to "
    "train without what arrived"
)
DAMAGE_ERRORS = (OSError, EOFError, zlib.error, pa.ArrowException, UnicodeDecodeError)
"""Errors of damaged compressed, parquet and arrow files."""


class RawRecord(NamedTuple):
    """Record that is not parsed yet.

    `number` counts the records of the file from 0. `end` is the offset of the byte after it, or
    CANNOT_SEEK. `content` is a line, a row, or the problem of a record that cannot be read.
    """

    number: int
    size: int
    end: int
    content: Any


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Row of a batch of columns."""

    batch: pa.RecordBatch
    index: int


class StreamFiles(Protocol):
    """Storage of the files of a stream."""

    def open(self, file: PlanFile) -> BinaryIO:
        """Open a file for reading from any place.

        Raises:
            ProblemsFound: A data problem if it is not what the plan says.
        """
        ...


class RecordHash:
    """Hash of consecutive records."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, record: RawRecord) -> None:
        """Add a record."""
        content = record.content
        self._hash.update(content if isinstance(content, bytes) else repr(content).encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordHash) and self._hash.digest() == other._hash.digest()

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Records of one file of a stream.

    Args:
        files: Storage of the file.
        file: File as it was when the stream was opened.
        required: Columns that are read, None for all.
        end: Record from which on the file is left out, None to read all.
        on_damage: Called with a record and a problem if the file is damaged from there on, which
            then ends the records. If None, the problem is raised.
    """

    files: StreamFiles
    file: PlanFile
    required: RequiredColumns | None = None
    end: int | None = None
    on_damage: Callable[[int, ProblemsFound], None] | None = None

    def iter_from(self, number: int, offset: int) -> Generator[RawRecord, None, None]:
        """Yield the records from record `number` on, which begins at `offset`.

        Raises:
            ProblemsFound: A data problem if the file is damaged.
        """
        start, given = (number, offset), RecordHash()
        fetches_again = is_remote_path(self.file.location)
        # a compressed file has its checksum at its end, the others have one of each part
        is_checked_late = fetches_again and not is_seekable(self.file.name)
        while self.end is None or number < self.end:
            try:
                for record in self._iter_once(number, offset):
                    number, offset = record.number + 1, record.end
                    if is_checked_late:
                        given.add(record)
                    yield record
                    if number == self.end:
                        return
            except DAMAGE_ERRORS as error:
                if fetches_again:
                    log.warning("%s is damaged; fetching it again", self.describe(number))
                    fetches_again = False
                    if is_checked_late:
                        self._check_given(start, number, given)
                    continue
                problem = self.build_damage_error(number, error)
                # an error with a number is one of the disk, and says nothing about the content
                if self.on_damage is None or getattr(error, "errno", None) is not None:
                    raise problem from error
                self.on_damage(number, problem)
            return

    def _check_given(self, start: tuple[int, int], end: int, given: "RecordHash") -> None:
        """Raise a data problem if a file does not hold the records from `start` to `end`."""
        held = RecordHash()
        try:
            for record in islice(self._iter_once(*start), end - start[0]):
                held.add(record)
        except DAMAGE_ERRORS as error:
            raise self.build_damage_error(end, error) from error
        if held != given:
            reason = "it arrived damaged, and records before that one were not those of the file"
            fault = SourceFault("damaged", reason)
            raise build_fault_problem(
                fault, self.describe(end), ("path",), hint=GIVEN_OUT_DAMAGED_HINT
            )

    def _iter_once(self, number: int, offset: int) -> Generator[RawRecord, None, None]:
        read = RECORD_READERS[get_data_suffix(Path(self.file.name))]
        with closing(self.files.open(self.file)) as opened:
            yield from read(self, opened, number, offset)

    def parse(self, record: RawRecord) -> LocatedRecord:
        """Return a record with its location.

        Raises:
            ProblemsFound: A data problem if it cannot be read.
        """
        place, content = self.describe(record.number), record.content
        if isinstance(content, ProblemsFound):
            raise content
        if isinstance(content, bytes):
            return place, parse_jsonl_line(decode_line(content, place), place)
        if isinstance(content, BatchRow):
            return place, content.batch.slice(content.index, 1).to_pylist()[0]
        return place, check_json_object(content, place)

    def describe(self, number: int) -> str:
        """Return the location of a record for messages."""
        return f"'{self.file.location}' record {number + 1}"

    def build_damage_error(self, number: int, error: Exception) -> ProblemsFound:
        """Build the problem of a file that cannot be read from record `number` on."""
        reason = str(error).partition("\n")[0] or type(error).__name__
        fault = SourceFault("damaged", f"the file is damaged: {reason}")
        return build_fault_problem(fault, self.describe(number), ("path",))


def iter_raw_line_records(
    source: RecordFile, opened: BinaryIO, number: int, offset: int
) -> Iterator[RawRecord]:
    """Yield one record per line that is not blank."""
    seeks = is_seekable(source.file.name)
    lines = open_lines(opened, source.file.name, offset)
    count = number if seeks else 0
    for line in lines:
        if line.isspace():
            continue
        if count >= number:
            yield RawRecord(count, len(line), lines.offset if seeks else CANNOT_SEEK, line)
        count += 1


def iter_raw_json_records(
    source: RecordFile, opened: BinaryIO, number: int, offset: int
) -> Iterator[RawRecord]:
    """Yield one record per member of an array, or else per line."""
    first = next(
        (line for line in open_lines(opened, source.file.name, 0) if not line.isspace()), b""
    )
    opened.seek(0)
    if not JSON_ARRAY_START.match(first[:256].decode(errors="replace")):
        yield from iter_raw_line_records(source, opened, number, offset)
        return
    text = read_whole_file(source, opened)
    members = parse_json_text(text, f"'{source.file.location}'")
    # the size of each is not known, but their sum is
    size = len(text) // max(1, len(members))
    for count, member in enumerate(members):
        if count >= number:
            yield RawRecord(count, size, CANNOT_SEEK, member)


def read_whole_file(source: RecordFile, opened: BinaryIO) -> str:
    """Return the text of a file, with line feeds as line ends.

    Raises:
        ProblemsFound: A data problem if it is too large for a stream, or not UTF-8.
    """
    parts, size = [], 0
    for line in open_lines(opened, source.file.name, 0):
        size += len(line)
        if size > MAX_WHOLE_FILE_BYTES:
            message = (
                f"'{source.file.location}' is larger than {MAX_WHOLE_FILE_BYTES // 2**20} MiB, "
                "but a stream reads such a file as a whole"
            )
            raise problem_error(
                "data", message, path=("path",), hint="write jsonl, or set streaming: false"
            )
        parts.append(line)
    text = decode_line(b"".join(parts), f"'{source.file.location}'")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def iter_raw_txt_records(
    source: RecordFile, opened: BinaryIO, number: int, offset: int
) -> Iterator[RawRecord]:
    """Yield the whole file as one record, or nothing if the file is empty."""
    text = read_whole_file(source, opened)
    if text and number == 0:
        # the only column answers to any name
        names = ["text", *(source.required or {})]
        yield RawRecord(0, len(text), CANNOT_SEEK, dict.fromkeys(names, text))


def iter_raw_csv_records(
    source: RecordFile, opened: BinaryIO, number: int, offset: int
) -> Iterator[RawRecord]:
    """Yield one record per row below the header; every value is text."""
    seeks, place = is_seekable(source.file.name), f"'{source.file.location}'"
    lines = open_lines(opened, source.file.name, 0)
    text = iter_csv_text(lines, place)
    header = next(csv.reader(text, strict=True), None)
    check_columns(header or (), source.required, place)
    if header is None:
        return
    count, start = 0, lines.offset
    # a value may hold line ends: the row, not the line, ends at the offset
    if seeks and offset > start:
        opened.seek(offset)
        lines, count, start = LineReader(opened, offset), number, offset
        text = iter_csv_text(lines, place)
    rows = read_csv_rows(text, header=header)
    try:
        for row in rows:
            size, start = lines.offset - start, lines.offset
            content: Any = row
            if None in row or None in row.values():
                content = problem_error(
                    "data",
                    f"{source.describe(count)} does not have the {len(header)} values "
                    "that the header names",
                    path=("path",),
                    hint='put values that hold commas or line ends in "quotes"',
                )
            if count >= number:
                yield RawRecord(count, size, start if seeks else CANNOT_SEEK, content)
            count += 1
    except csv.Error as error:
        raise problem_error(
            "data",
            f"{source.describe(count)} is not CSV: {error}",
            path=("path",),
            hint="write the file again",
        ) from None


def iter_csv_text(lines: LineReader, place: str) -> Iterator[str]:
    """Yield lines as text whose line ends are line feeds."""
    for line in lines:
        text = decode_line(line, place)
        ending = text.rstrip("\r\n")
        yield ending + "\n" if len(ending) < len(text) else text


def iter_raw_parquet_records(
    source: RecordFile, opened: BinaryIO, number: int, offset: int
) -> Iterator[RawRecord]:
    """Yield one record per row; row groups before `number` are not read."""
    file = pq.ParquetFile(
        opened, pre_buffer=False, buffer_size=2**20, page_checksum_verification=True
    )
    names = file.schema_arrow.names
    check_columns(names, source.required, f"'{source.file.location}'")
    columns = None if source.required is None else list(source.required)
    count = 0
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if count + size <= number:
            count += size
            continue
        for batch in file.iter_batches(READ_BATCH, row_groups=[group], columns=columns):
            yield from iter_raw_batch_records(batch, count, number)
            count += batch.num_rows


def iter_raw_arrow_records(
    source: RecordFile, opened: BinaryIO, number: int, offset: int
) -> Iterator[RawRecord]:
    """Yield one record per row of a Feather file, or of a stream as `save_to_disk` writes it."""
    begin, before = divmod(max(0, offset), MAX_PLACED_ROWS)
    schema, batches = read_placed_batches(opened, begin)
    check_columns(schema.names, source.required, f"'{source.file.location}'")
    count = number - before if offset > 0 else 0
    for batch, at in batches:
        if count + batch.num_rows > number:
            chosen = batch if source.required is None else batch.select(list(source.required))
            place = at if batch.num_rows < MAX_PLACED_ROWS else None
            for start in range(0, batch.num_rows, READ_BATCH):
                piece = chosen.slice(start, READ_BATCH)
                first = None if place is None else place * MAX_PLACED_ROWS + start
                yield from iter_raw_batch_records(piece, count + start, number, first)
        count += batch.num_rows


def iter_raw_batch_records(
    batch: pa.RecordBatch, first: int, number: int, offset: int | None = None
) -> Iterator[RawRecord]:
    """Yield the rows of a batch from record `number` on.

    Its first row is record `first`, which begins at `offset`, None if the file cannot be read from
    there.
    """
    # the offsets of damaged columns may lead anywhere in memory
    batch.validate(full=True)
    for index in range(max(0, number - first), batch.num_rows):
        size = batch.slice(index, 1).nbytes
        end = CANNOT_SEEK if offset is None else offset + index + 1
        yield RawRecord(first + index, size, end, BatchRow(batch, index))


RECORD_READERS: dict[str, Callable[[RecordFile, BinaryIO, int, int], Iterator[RawRecord]]] = {
    ".jsonl": iter_raw_line_records,
    ".json": iter_raw_json_records,
    ".csv": iter_raw_csv_records,
    ".txt": iter_raw_txt_records,
    ".parquet": iter_raw_parquet_records,
    ".arrow": iter_raw_arrow_records,
}
