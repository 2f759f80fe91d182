"""Records of several columns from local files, imported only to build an index.

Parquet files are read with the datasets library.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from titanrun.components.data.jsonl_reader import (
    iter_file_lines,
    silence_datasets_library,
    to_library_path,
)
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
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import ProblemsFound, problem_error

if TYPE_CHECKING:
    import datasets
else:
    # a stream reads the same formats without the library, which takes a second to import
    datasets = LazyModule("datasets")

Record = dict[str, Any]
LocatedRecord = tuple[str, Record]
"""Location of a record, for messages, and the record."""
BadRecordHandler = Callable[[ProblemsFound], None]
"""Function that raises the problem of a record, or counts it so that the record is skipped."""

READ_BATCH = 1024
"""Rows read from the library at a time."""


def raise_bad_record(error: ProblemsFound) -> None:
    """Raise the problem: every record must be valid."""
    raise error


def iter_records(
    files: Sequence[Path],
    *,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield the records of all files in order, with the required columns, or all.

    Args:
        files: Data files.
        required: Columns to read. If None, all.
        on_bad_record: Called with problems of one record only.

    Raises:
        ProblemsFound: A data problem that names the file, and line if known.
    """
    with silence_datasets_library():
        for file in files:
            yield from FORMAT_READERS[get_data_suffix(file)](file, required, on_bad_record)


def iter_jsonl_records(
    file: Path,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield one record per non-empty line."""
    for number, line in enumerate(iter_file_lines(file), start=1):
        if not line.isspace():
            place = f"'{file}' line {number}"
            try:
                record = parse_jsonl_line(line, place)
            except ProblemsFound as error:
                on_bad_record(error)
                continue
            yield place, record


def iter_json_records(
    file: Path,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield one record per member of an array, or else per line.

    An array is held in memory as a whole.
    """
    if not is_json_array(file):
        yield from iter_jsonl_records(file, required, on_bad_record)
        return
    members = parse_json_text("".join(iter_file_lines(file)), f"'{file}'")
    for number, member in enumerate(members, start=1):
        place = f"'{file}' record {number}"
        try:
            record = check_json_object(member, place)
        except ProblemsFound as error:
            on_bad_record(error)
            continue
        yield place, record


def is_json_array(file: Path) -> bool:
    """Return whether a JSON file begins as an array."""
    return (
        JSON_ARRAY_START.match(
            next((line for line in iter_file_lines(file) if not line.isspace()), "")
        )
        is not None
    )


def iter_csv_records(
    file: Path,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield one record per row below the header; every value is text.

    Raises:
        ProblemsFound: A data problem if a row is not as wide as the header.
    """
    reader = read_csv_rows(iter_file_lines(file))
    try:
        check_columns(reader.fieldnames or (), required, f"'{file}'")
        for record in reader:
            place = f"'{file}' line {reader.line_num}"
            if None in record or None in record.values():
                message = (
                    f"{place} does not have the {len(reader.fieldnames or ())} values "
                    "that the header names"
                )
                on_bad_record(
                    problem_error(
                        "data",
                        message,
                        path=("path",),
                        hint='put values that hold commas or line ends in "quotes"',
                    )
                )
                continue
            yield place, record
    except csv.Error as error:
        raise problem_error(
            "data",
            f"'{file}' line {reader.line_num} is not CSV: {error}",
            path=("path",),
            hint="write the file again",
        ) from None


def iter_parquet_records(
    file: Path,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield one record per row."""
    columns = {} if required is None else {"columns": list(required)}
    # not in the token cache, which may be on a file system without the locks that it needs
    scratch = mkdtemp(prefix="titanrun-")
    try:
        if required is not None:
            names = open_parquet_stream(file, scratch).column_names or []
            check_columns(names, required, f"'{file}'")
        stream = open_parquet_stream(file, scratch, batch_size=READ_BATCH, **columns)
        yield from iter_batch_rows(file, stream.iter(batch_size=READ_BATCH))
    # pyarrow raises ValueError or OSError with a long text, whose first line names the reason
    except (ValueError, OSError) as error:
        raise unreadable_file_error(file, "parquet", error) from None
    finally:
        rmtree(scratch, ignore_errors=True)


def iter_arrow_records(
    file: Path,
    required: RequiredColumns | None = None,
    on_bad_record: BadRecordHandler = raise_bad_record,
) -> Iterator[LocatedRecord]:
    """Yield one record per row of an Arrow file.

    Both formats are read: Feather, and the stream format that the datasets library saves.
    """
    try:
        with pa.memory_map(str(file)) as source:
            schema, batches = read_arrow_batches(source)
            check_columns(schema.names, required, f"'{file}'")
            chosen = (
                batch if required is None else batch.select(list(required)) for batch in batches
            )
            pieces = chain.from_iterable(
                (batch.slice(at, READ_BATCH) for at in range(0, batch.num_rows, READ_BATCH))
                for batch in chosen
            )
            yield from iter_batch_rows(file, (convert_batch(piece) for piece in pieces))
    except (ValueError, OSError) as error:
        raise unreadable_file_error(file, "Arrow", error) from None


def read_arrow_batches(source: pa.MemoryMappedFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of an Arrow file and its batches."""
    try:
        opened = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return stream.schema, iter(stream)
    return opened.schema, (opened.get_batch(number) for number in range(opened.num_record_batches))


def convert_batch(batch: pa.RecordBatch) -> Mapping[str, Sequence[Any]]:
    """Return the columns of a batch as lists.

    Raises:
        ArrowInvalid: If its file is damaged. The offsets of its columns may lead anywhere.
    """
    batch.validate(full=True)
    columns: Mapping[str, Sequence[Any]] = batch.to_pydict()
    return columns


def iter_batch_rows(
    file: Path, batches: Iterator[Mapping[str, Sequence[Any]]]
) -> Iterator[LocatedRecord]:
    """Yield the rows of batches of columns, each with its number in the file."""
    number = 0
    for batch in batches:
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield f"'{file}' row {number}", dict(zip(batch, values, strict=True))


def unreadable_file_error(file: Path, kind: str, error: Exception) -> ProblemsFound:
    """Build the problem of a file that the library cannot read."""
    reason = str(error).partition("\n")[0]
    return problem_error(
        "data",
        f"'{file}' cannot be read as {kind}: {reason}",
        path=("path",),
        hint="fetch or write it again",
    )


def open_parquet_stream(file: Path, scratch: str, **options: Any) -> "datasets.IterableDataset":
    """Open one parquet file as a stream of rows; `scratch` is a folder for the library's files."""
    return datasets.Dataset.from_parquet(
        to_library_path(file), cache_dir=scratch, streaming=True, **options
    )


FORMAT_READERS: dict[
    str, Callable[[Path, RequiredColumns | None, BadRecordHandler], Iterator[LocatedRecord]]
] = {
    ".jsonl": iter_jsonl_records,
    ".json": iter_json_records,
    ".parquet": iter_parquet_records,
    ".csv": iter_csv_records,
    ".arrow": iter_arrow_records,
}
