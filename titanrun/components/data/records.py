"""Records of several columns out of local files, through the datasets library; imported only when an index must be built."""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from titanrun.components.data.text_files import READ_BATCH, open_parquet, parse_line, quiet, read_lines
from titanrun.config.problems import fail

Record = dict[str, Any]
Placed = tuple[str, Record]
"""Where a record stands, for messages, and the record."""


def read_records(files: Sequence[Path], *, scratch: Path) -> Iterator[Placed]:
    """The records of all files in their order. `scratch` is a folder for the library's own files.

    Raises a data problem that names file, and line where known.
    """
    with quiet():
        for file in files:
            yield from READERS[file.suffix.lower()](file, scratch)


def read_jsonl(file: Path, scratch: Path) -> Iterator[Placed]:
    """One record from each line that is not empty."""
    for number, line in enumerate(read_lines(file, scratch), start=1):
        if not line.isspace():
            place = f"'{file}' line {number}"
            yield place, parse_line(line, place)


def read_csv(file: Path, scratch: Path) -> Iterator[Placed]:
    """One record from each row below the header; every value is text. Raises a data problem where a row is not as wide as the header."""
    reader = csv.DictReader(read_lines(file, scratch), strict=True)
    try:
        for record in reader:
            place = f"'{file}' line {reader.line_num}"
            if None in record or None in record.values():
                message = f"{place} does not have the {len(reader.fieldnames or ())} values that the header names"
                raise fail("data", message, path=("path",), help='put values that hold commas or line ends in "quotes"')
            yield place, record
    except csv.Error as error:
        raise fail("data", f"'{file}' line {reader.line_num} is not CSV: {error}", path=("path",), help="write the file again") from None


def read_parquet(file: Path, scratch: Path) -> Iterator[Placed]:
    """One record from each row."""
    try:
        number = 0
        for batch in open_parquet(file, scratch, batch_size=READ_BATCH).iter(batch_size=READ_BATCH):
            for values in zip(*batch.values(), strict=True):
                number += 1
                yield f"'{file}' row {number}", dict(zip(batch, values, strict=True))
    # pyarrow's errors are ValueErrors or OSErrors with long texts whose first line says what is wrong
    except (ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise fail("data", f"'{file}' cannot be read as parquet: {reason}", path=("path",), help="fetch or write it again") from None


READERS: dict[str, Callable[[Path, Path], Iterator[Placed]]] = {".jsonl": read_jsonl, ".parquet": read_parquet, ".csv": read_csv}
SUFFIXES = tuple(READERS)
