"""Records of several columns out of local files, through the datasets library; imported only when an index must be built."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from titanrun.components.data.columns import ARRAY, Wanted, check_columns
from titanrun.components.data.reading import (
    as_record,
    library_path,
    parse_json,
    parse_line,
    quiet,
    read_lines,
)
from titanrun.components.data.source_files import ending
from titanrun.config.problems import ProblemsFound, fail

Record = dict[str, Any]
Placed = tuple[str, Record]
"""Where a record stands, for messages, and the record."""
OnBad = Callable[[ProblemsFound], None]
"""Raises what is wrong with a record, or counts it and lets the record be left out."""

READ_BATCH = 1024
"""Rows taken from the library at a time."""


def refuse(error: ProblemsFound) -> None:
    """Every record must be right."""
    raise error


def read_records(
    files: Sequence[Path], *, scratch: Path, wanted: Wanted | None = None, on_bad: OnBad = refuse
) -> Iterator[Placed]:
    """The records of all files in their order, with the columns that are wanted, or all. `scratch` is a folder for the library's own files.

    Raises a data problem that names file, and line where known. What is wrong with one record only goes to `on_bad`.
    """
    with quiet():
        for file in files:
            yield from READERS[ending(file)](file, scratch, wanted, on_bad)


def read_jsonl(
    file: Path, scratch: Path, wanted: Wanted | None = None, on_bad: OnBad = refuse
) -> Iterator[Placed]:
    """One record from each line that is not empty."""
    for number, line in enumerate(read_lines(file, scratch), start=1):
        if not line.isspace():
            place = f"'{file}' line {number}"
            try:
                record = parse_line(line, place)
            except ProblemsFound as error:
                on_bad(error)
                continue
            yield place, record


def read_json(
    file: Path, scratch: Path, wanted: Wanted | None = None, on_bad: OnBad = refuse
) -> Iterator[Placed]:
    """One record from each member of an array, which is held in memory whole; without an array, from each line."""
    if not is_array(file, scratch):
        yield from read_jsonl(file, scratch, wanted, on_bad)
        return
    members = parse_json("".join(read_lines(file, scratch)), f"'{file}'")
    for number, member in enumerate(members, start=1):
        place = f"'{file}' record {number}"
        try:
            record = as_record(member, place)
        except ProblemsFound as error:
            on_bad(error)
            continue
        yield place, record


def is_array(file: Path, scratch: Path) -> bool:
    """Whether a JSON file begins as an array."""
    return (
        ARRAY.match(next((line for line in read_lines(file, scratch) if not line.isspace()), ""))
        is not None
    )


def read_csv(
    file: Path, scratch: Path, wanted: Wanted | None = None, on_bad: OnBad = refuse
) -> Iterator[Placed]:
    """One record from each row below the header; every value is text. Raises a data problem where a row is not as wide as the header."""
    reader = csv.DictReader(read_lines(file, scratch), strict=True)
    try:
        check_columns(reader.fieldnames or (), wanted, f"'{file}'")
        for record in reader:
            place = f"'{file}' line {reader.line_num}"
            if None in record or None in record.values():
                message = f"{place} does not have the {len(reader.fieldnames or ())} values that the header names"
                on_bad(
                    fail(
                        "data",
                        message,
                        path=("path",),
                        help='put values that hold commas or line ends in "quotes"',
                    )
                )
                continue
            yield place, record
    except csv.Error as error:
        raise fail(
            "data",
            f"'{file}' line {reader.line_num} is not CSV: {error}",
            path=("path",),
            help="write the file again",
        ) from None


def read_parquet(
    file: Path, scratch: Path, wanted: Wanted | None = None, on_bad: OnBad = refuse
) -> Iterator[Placed]:
    """One record from each row."""
    try:
        if wanted is not None:
            check_columns(open_parquet(file, scratch).column_names or [], wanted, f"'{file}'")
        columns = {} if wanted is None else {"columns": list(wanted)}
        yield from numbered(
            file,
            open_parquet(file, scratch, batch_size=READ_BATCH, **columns).iter(
                batch_size=READ_BATCH
            ),
        )
    # pyarrow's errors are ValueErrors or OSErrors with long texts whose first line says what is wrong
    except (ValueError, OSError) as error:
        raise unreadable(file, "parquet", error) from None


def read_arrow(
    file: Path, scratch: Path, wanted: Wanted | None = None, on_bad: OnBad = refuse
) -> Iterator[Placed]:
    """One record from each row of an Arrow file, in either of the two forms: as Feather, or as the datasets library saves it."""
    try:
        with pa.memory_map(str(file)) as source:
            schema, batches = arrow_batches(source)
            check_columns(schema.names, wanted, f"'{file}'")
            chosen = (batch if wanted is None else batch.select(list(wanted)) for batch in batches)
            pieces = chain.from_iterable(
                (batch.slice(at, READ_BATCH) for at in range(0, batch.num_rows, READ_BATCH))
                for batch in chosen
            )
            yield from numbered(file, (piece.to_pydict() for piece in pieces))
    except (ValueError, OSError) as error:
        raise unreadable(file, "Arrow", error) from None


def arrow_batches(source: pa.MemoryMappedFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns of an Arrow file and its batches."""
    try:
        opened = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return stream.schema, iter(stream)
    return opened.schema, (opened.get_batch(number) for number in range(opened.num_record_batches))


def numbered(file: Path, batches: Iterator[Mapping[str, Sequence[Any]]]) -> Iterator[Placed]:
    """The rows of batches of columns, each with its number in the file."""
    number = 0
    for batch in batches:
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield f"'{file}' row {number}", dict(zip(batch, values, strict=True))


def unreadable(file: Path, kind: str, error: Exception) -> ProblemsFound:
    """The problem of a file that the library cannot read."""
    reason = str(error).partition("\n")[0]
    return fail(
        "data",
        f"'{file}' cannot be read as {kind}: {reason}",
        path=("path",),
        help="fetch or write it again",
    )


def open_parquet(file: Path, scratch: Path, **options: Any) -> datasets.IterableDataset:
    """The rows of one parquet file as a stream."""
    return datasets.Dataset.from_parquet(
        library_path(file), cache_dir=str(scratch), streaming=True, **options
    )


READERS: dict[str, Callable[[Path, Path, Wanted | None, OnBad], Iterator[Placed]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".arrow": read_arrow,
}
