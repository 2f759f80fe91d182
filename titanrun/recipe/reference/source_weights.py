"""Weights of the sources of a mixture from the sizes of their files, so that shares are by size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.compression import open_decompressed_text
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound

MAX_COUNTED_BYTES = 2**30
"""Size of the files of all sources up to which records are counted: about ten seconds."""
BY_RECORDS = "weight is the number of records, for shares by size"
BY_BYTES = "weight is the size of the files, about the shares of packed sequences"
EQUAL = (
    "a mixture reads equal shares of its sources: for shares by size, set weight of each to its "
    "number of sequences"
)


def weigh_sources(sources: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
    """Return a weight of each source, and what it is; no weights if sizes cannot be compared.

    Sources that do not pack have a sequence for each record, at most max_rows. Of packed sequences
    the number is about in proportion to the size of the files.
    """
    packed = [is_packed(source["dataset"]) for source in sources]
    files = [list_source_files(source["dataset"]) for source in sources]
    sizes = [sum(file.stat().st_size for file in found) for found in files]
    if len(sources) < 2 or not all(sizes):
        return [], EQUAL
    if all(packed) and not any("max_rows" in source for source in sources):
        return sizes, BY_BYTES
    if any(packed) or sum(sizes) > MAX_COUNTED_BYTES:
        return [], EQUAL
    numbers = [
        min(count_records(found), source.get("max_rows", MAX_COUNTED_BYTES))
        for found, source in zip(files, sources, strict=True)
    ]
    return (numbers, BY_RECORDS) if all(numbers) else ([], EQUAL)


def is_packed(dataset: Mapping[str, Any]) -> bool:
    """Return whether several records of a dataset may share a sequence."""
    usual = "windows" if dataset["name"] == "text" else None
    return dataset.get("packing", usual) is not None


def list_source_files(dataset: Mapping[str, Any]) -> list[Path]:
    """Return the files of a dataset, none if they are not here."""
    try:
        return resolve_data_files(str(dataset["path"])) if "path" in dataset else []
    except ProblemsFound:
        return []


def count_records(files: Sequence[Path]) -> int:
    """Return the number of records in JSON files, 0 if one of them is no such file."""
    counts = [count_file_records(file) for file in files]
    return sum(counts) if all(counts) else 0


def count_file_records(file: Path) -> int:
    """Return the number of records in a file of JSON lines, or with one JSON list."""
    suffix = get_data_suffix(file)
    try:
        with open_decompressed_text(file) as lines:
            if suffix == ".json" and isinstance(whole := parse_json(lines.read()), list):
                return len(whole)
        with open_decompressed_text(file) as lines:
            return sum(not line.isspace() for line in lines) if suffix == ".jsonl" else 0
    except (OSError, ValueError):
        return 0
