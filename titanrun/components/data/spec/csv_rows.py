"""Rows of CSV files, whose values may be long documents."""

import csv
from collections.abc import Iterable, Sequence

MAX_VALUE_CHARACTERS = 2**26
"""Largest value. Python's csv module refuses those above 2^17 characters, a long article, unless it
is told otherwise; without a limit, a missing quote would read the rest of the file as one value."""


def read_csv_rows(
    lines: Iterable[str], *, header: Sequence[str] | None = None, strict: bool = True
) -> "csv.DictReader[str]":
    """Return the rows of a CSV file, by the names of `header`, or else those of its first row."""
    csv.field_size_limit(MAX_VALUE_CHARACTERS)
    return csv.DictReader(lines, fieldnames=header, strict=strict)
