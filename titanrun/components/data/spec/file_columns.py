"""Columns that a dataset reads, and columns of a file."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.spec.compression import open_decompressed_text
from titanrun.components.data.spec.csv_rows import read_csv_rows
from titanrun.components.data.spec.data_files import get_data_suffix
from titanrun.config.json_text import parse_json
from titanrun.config.problems import DataPath, ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml

RequiredColumns = Mapping[str, DataPath]
"""Required columns, each with the path of the field that names it."""
CHAT_COLUMNS = ("messages", "conversations")
MAX_PREVIEW_CHARACTERS = 2**20
JSON_ARRAY_START = re.compile(r"\s*\[\s*")
"""Beginning of a JSON file that is one array, not one record per line."""
JSON_ARRAY_SEPARATOR = re.compile(r"\s*,\s*")


def get_required_columns(config: DocumentsConfig) -> RequiredColumns:
    """Return the columns that a dataset reads, with the field that names each."""
    wanted: dict[str, DataPath] = {}
    for name in [config.column] if config.format is None else parse_format_columns(config.format):
        wanted[name] = ("column",) if config.format is None else ("format",)
    for number, chosen in enumerate(config.filters):
        wanted.setdefault(chosen.column, ("filters", number, "column"))
    return wanted


def parse_format_columns(column_format: str) -> list[str]:
    """Return the columns that a format names in braces."""
    return [name for _, name, _, _ in Formatter().parse(column_format) if name]


def check_columns(
    columns: Sequence[str] | Mapping[str, Any], required: RequiredColumns | None, location: str
) -> None:
    """Raise a data problem if a required column is missing."""
    for column, path in (required or {}).items():
        if column not in columns:
            raise missing_column_error(location, column, list(columns), path)


def missing_column_error(
    location: str, column: str, columns: Sequence[str], path: DataPath
) -> ProblemsFound:
    """Build the problem of a record or file without a column that the field at `path` names."""
    known = ", ".join(map(str, columns)) or "none"
    close = get_close_matches(column, list(map(str, columns)), n=1)
    hint = f"did you mean '{close[0]}'?" if close else "name an existing column"
    if not close and len(columns) == 1 and path[-1] == "column":
        hint = f"write column: {to_flow_yaml(str(columns[0]))}"
    if column == "text" and path[-1] == "column" and not {*columns}.isdisjoint(CHAT_COLUMNS):
        hint = "records of conversations are read by name: chat"
    return problem_error(
        "data", f"{location} has no column '{column}'; it has: {known}", path=path, hint=hint
    )


def iter_valid_jsonl_records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records up to the first line without one, which the run reports."""
    try:
        with open_decompressed_text(file) as lines:
            for line in lines:
                if line.isspace():
                    continue
                record = parse_json(line)
                if not isinstance(record, dict):
                    return
                yield record
    except (OSError, ValueError):
        return


def iter_valid_json_records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of an array or of lines up to the first invalid one.

    Of an array, only the records in the first megabyte.
    """
    try:
        with open_decompressed_text(file) as text:
            beginning = text.read(MAX_PREVIEW_CHARACTERS)
        before = JSON_ARRAY_START.match(beginning)
        if before is None:
            yield from iter_valid_jsonl_records(file)
        while before is not None:
            record, end = json.JSONDecoder().raw_decode(beginning, before.end())
            if not isinstance(record, dict):
                return
            yield record
            before = JSON_ARRAY_SEPARATOR.match(beginning, end)
    except (OSError, ValueError):
        return


def iter_valid_csv_records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records up to the first that cannot be read."""
    try:
        with open_decompressed_text(file, newline="") as lines:
            yield from read_csv_rows(lines, strict=False)
    except (OSError, ValueError, csv.Error):
        return


def find_jsonl_columns(file: Path) -> list[str] | None:
    """Return the columns of the first record."""
    record = next(iter_valid_jsonl_records(file), None)
    return None if record is None else list(record)


def find_json_columns(file: Path) -> list[str] | None:
    """Return the columns of the first record."""
    record = next(iter_valid_json_records(file), None)
    return None if record is None else list(record)


def find_csv_columns(file: Path) -> list[str] | None:
    """Return the columns in the header."""
    try:
        with open_decompressed_text(file, newline="") as lines:
            return next(csv.reader(lines), None)
    except (OSError, ValueError, csv.Error):
        return None


def find_parquet_columns(file: Path) -> list[str] | None:
    """Return the columns in the schema."""
    try:
        return list(import_module("pyarrow.parquet").read_schema(file).names)
    except (OSError, ValueError):
        return None


def find_txt_columns(file: Path) -> list[str] | None:
    """Return the only column: a text file is one record."""
    return ["text"]


def find_arrow_columns(file: Path) -> list[str] | None:
    """Return the columns in the schema, of a Feather file or of a stream."""
    ipc = import_module("pyarrow.ipc")
    for opened in (ipc.open_file, ipc.open_stream):
        try:
            with file.open("rb") as source:
                return list(opened(source).schema.names)
        except (OSError, ValueError):
            continue
    return None


COLUMN_FINDERS: dict[str, Callable[[Path], list[str] | None]] = {
    ".jsonl": find_jsonl_columns,
    ".json": find_json_columns,
    ".csv": find_csv_columns,
    ".parquet": find_parquet_columns,
    ".arrow": find_arrow_columns,
    ".txt": find_txt_columns,
}


def find_file_columns(file: Path) -> list[str] | None:
    """Return the columns of a file, or of its first record, None if unknown."""
    return COLUMN_FINDERS[get_data_suffix(file)](file)
