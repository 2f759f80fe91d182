"""Columns of data files with what they hold, for a recipe that `titanrun init` writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.data_files import get_data_suffix
from titanrun.components.data.spec.file_columns import (
    iter_valid_csv_records,
    iter_valid_json_records,
    iter_valid_jsonl_records,
)


@dataclass(frozen=True, slots=True)
class ColumnContent:
    """What a column holds, as far as it is known.

    Args:
        keys: keys of the objects in its lists.
        is_text: whether it holds texts.
    """

    keys: tuple[str, ...] = ()
    is_text: bool = False


Columns = Mapping[str, ColumnContent]


def read_columns(file: Path) -> Columns:
    """Return the columns of a file by its schema or its first record, none of a damaged file.

    A .txt or .arrow file is not opened.
    """
    reader = COLUMN_READERS.get(get_data_suffix(file))
    return {} if reader is None else reader(file)


def read_jsonl_columns(file: Path) -> Columns:
    """Return the columns of the first record of JSON lines."""
    return describe_record(next(iter_valid_jsonl_records(file), {}))


def read_json_columns(file: Path) -> Columns:
    """Return the columns of the first record of a JSON list, or of JSON lines."""
    return describe_record(next(iter_valid_json_records(file), {}))


def describe_record(record: Mapping[str, Any]) -> Columns:
    """Return the columns of a record of JSON."""
    return {
        name: ColumnContent(list_keys(value), isinstance(value, str))
        for name, value in record.items()
    }


def list_keys(value: object) -> tuple[str, ...]:
    """Return the keys of the first object of a list, none of another value."""
    first = value[0] if isinstance(value, list) and value else None
    return tuple(first) if isinstance(first, dict) else ()


def read_csv_columns(file: Path) -> Columns:
    """Return the columns of the first record of a csv file; numbers are no texts."""
    record = next(iter_valid_csv_records(file), {})
    return {
        name: ColumnContent(is_text=isinstance(value, str) and not is_number(value))
        for name, value in record.items()
        # values beyond the header have no name
        if isinstance(name, str)
    }


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_parquet_columns(file: Path) -> Columns:
    """Return the columns in the schema of a parquet file."""
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        schema = parquet.read_schema(file)
    except (OSError, ValueError):
        return {}
    found = {}
    for field in schema:
        is_list = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        is_of_objects = is_list and pa.types.is_struct(field.type.value_type)
        keys = [inner.name for inner in field.type.value_type] if is_of_objects else []
        is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        found[field.name] = ColumnContent(tuple(keys), is_text)
    return found


COLUMN_READERS = {
    ".jsonl": read_jsonl_columns,
    ".json": read_json_columns,
    ".csv": read_csv_columns,
    ".parquet": read_parquet_columns,
}
