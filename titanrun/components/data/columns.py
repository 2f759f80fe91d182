"""Which columns a dataset reads, and which a file has."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

from titanrun.components.data.compressed import opened_text
from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.source_files import ending
from titanrun.config.problems import DataPath, ProblemsFound, fail

Wanted = Mapping[str, DataPath]
"""The columns that are read, and the field that names each."""
FIRST_CHARACTERS = 2**20
ARRAY = re.compile(r"\s*\[\s*")
"""How a JSON file begins that is one array, not a record a line."""
BETWEEN = re.compile(r"\s*,\s*")


def wanted_columns(config: DocumentsConfig) -> Wanted:
    """The columns that a dataset reads, and the field that names each."""
    wanted: dict[str, DataPath] = {}
    for name in [config.column] if config.format is None else format_columns(config.format):
        wanted[name] = ("column",) if config.format is None else ("format",)
    for number, chosen in enumerate(config.filters):
        wanted.setdefault(chosen.column, ("filters", number, "column"))
    return wanted


def format_columns(format: str) -> list[str]:
    """The columns that a format names in braces."""
    return [name for _, name, _, _ in Formatter().parse(format) if name]


def check_columns(
    columns: Sequence[str] | Mapping[str, Any], wanted: Wanted | None, place: str
) -> None:
    """Raises a data problem where a column that is wanted is not there."""
    for column, path in (wanted or {}).items():
        if column not in columns:
            raise missing_column(place, column, list(columns), path)


def missing_column(
    place: str, column: str, columns: Sequence[str], path: DataPath
) -> ProblemsFound:
    """The problem of a record or file without a column that the recipe names in the field at `path`."""
    known = ", ".join(map(str, columns)) or "none"
    close = get_close_matches(column, list(map(str, columns)), n=1)
    help = f"did you mean '{close[0]}'?" if close else "name a column that is there"
    return fail("data", f"{place} has no column '{column}'; it has: {known}", path=path, help=help)


def records_of_jsonl(file: Path) -> Iterator[Mapping[str, Any]]:
    """The records up to the first line that holds none, which the run tells."""
    try:
        with opened_text(file) as lines:
            for line in lines:
                if line.isspace():
                    continue
                record = json.loads(line)
                if not isinstance(record, dict):
                    return
                yield record
    except (OSError, ValueError, RecursionError):
        return


def records_of_json(file: Path) -> Iterator[Mapping[str, Any]]:
    """The records of an array or of lines up to the first that is none; of an array those that end in the first megabyte."""
    try:
        with opened_text(file) as text:
            beginning = text.read(FIRST_CHARACTERS)
        before = ARRAY.match(beginning)
        if before is None:
            yield from records_of_jsonl(file)
        while before is not None:
            record, end = json.JSONDecoder().raw_decode(beginning, before.end())
            if not isinstance(record, dict):
                return
            yield record
            before = BETWEEN.match(beginning, end)
    except (OSError, ValueError, RecursionError):
        return


def records_of_csv(file: Path) -> Iterator[Mapping[str, Any]]:
    """The records up to the first that cannot be read."""
    try:
        with opened_text(file, newline="") as lines:
            yield from csv.DictReader(lines)
    except (OSError, ValueError, csv.Error):
        return


def jsonl_columns(file: Path) -> list[str] | None:
    """The columns of the first record."""
    record = next(records_of_jsonl(file), None)
    return None if record is None else list(record)


def json_columns(file: Path) -> list[str] | None:
    """The columns of the first record."""
    record = next(records_of_json(file), None)
    return None if record is None else list(record)


def csv_columns(file: Path) -> list[str] | None:
    """What the header names."""
    try:
        with opened_text(file, newline="") as lines:
            return next(csv.reader(lines), None)
    except (OSError, ValueError, csv.Error):
        return None


def parquet_columns(file: Path) -> list[str] | None:
    """What the schema names."""
    try:
        return list(import_module("pyarrow.parquet").read_schema(file).names)
    except (OSError, ValueError):
        return None


def text_columns(file: Path) -> list[str] | None:
    """A text file is one record with one column."""
    return ["text"]


def arrow_columns(file: Path) -> list[str] | None:
    """What the schema names, of a Feather file or of what the datasets library saves."""
    ipc = import_module("pyarrow.ipc")
    for opened in (ipc.open_file, ipc.open_stream):
        try:
            with file.open("rb") as source:
                return list(opened(source).schema.names)
        except (OSError, ValueError):
            continue
    return None


COLUMNS: dict[str, Callable[[Path], list[str] | None]] = {
    ".jsonl": jsonl_columns,
    ".json": json_columns,
    ".csv": csv_columns,
    ".parquet": parquet_columns,
    ".arrow": arrow_columns,
    ".txt": text_columns,
}


def columns_of(file: Path) -> list[str] | None:
    """The columns of a file, or of its first record; None where that cannot be told."""
    return COLUMNS[ending(file)](file)
