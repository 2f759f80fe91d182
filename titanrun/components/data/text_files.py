"""Documents out of local text files; imported only when an index must be built."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from string import Formatter
from typing import Any

from titanrun.components.data.columns import check_columns, format_columns, wanted_columns
from titanrun.components.data.config import DocumentsConfig, Filter
from titanrun.components.data.reading import quiet, read_lines
from titanrun.components.data.records import OnBad, Placed, read_records, refuse
from titanrun.components.data.source_files import ending
from titanrun.config.problems import DataPath, ProblemsFound, fail

log = logging.getLogger(__name__)

Document = Iterable[str]
"""The text of one document in consecutive strings."""
TOLD = 5
"""How many records that are left out are told of one by one."""


class BadRecords:
    """What becomes of records that cannot be read: the first one ends the reading, or they are left out, counted, up to a share."""

    def __init__(self, config: DocumentsConfig) -> None:
        self._refuses = config.bad_records == "refuse"
        self._most = config.max_bad_share
        self.count = 0

    def __call__(self, error: ProblemsFound) -> None:
        """Raises the problem, or counts it."""
        if self._refuses:
            raise error
        self.count += 1
        if self.count <= TOLD:
            log.warning("left out: %s", error.problems[0].message)

    def check(self, read: int) -> None:
        """Raises a data problem where too many of all records were left out; `read` were right."""
        if self.count > self._most * (self.count + read):
            message = f"{self.count} of {self.count + read} records cannot be read, more than max_bad_share {self._most:g} allows"
            raise fail(
                "data",
                message,
                path=("max_bad_share",),
                help="repair the files; the first ones are named in the log",
            )


class DocumentReader:
    """The documents that a dataset's columns, format and filters make of files. `left_out` counts those that no filter lets through."""

    def __init__(self, config: DocumentsConfig, *, bad: OnBad = refuse) -> None:
        self._config = config
        self._bad = bad
        self._wanted = wanted_columns(config)
        self.read = 0
        self.left_out = 0

    def documents(self, files: Sequence[Path], *, scratch: Path) -> Iterator[Document]:
        """The documents of all files in their order, at most `max_documents`; each must be used up before the next is asked for.

        Raises a data problem that names file, and line and column where known.
        """
        for document in self._all_documents(files, scratch):
            yield document
            if self.read == self._config.max_documents:
                return

    def of_records(self, records: Iterable[Placed]) -> Iterator[Document]:
        """The documents of records that stand elsewhere, in their order, at most `max_documents`."""
        for document in self._documents_of(records):
            yield document
            if self.read == self._config.max_documents:
                return

    def _all_documents(self, files: Sequence[Path], scratch: Path) -> Iterator[Document]:
        streams_whole_files = self._config.format is None and not self._config.filters
        for file in files:
            if ending(file) != ".txt":
                yield from self._documents_of(
                    read_records([file], scratch=scratch, wanted=self._wanted, on_bad=self._bad)
                )
            elif streams_whole_files:
                with quiet():
                    for document in read_txt(file, scratch):
                        self.read += 1
                        yield document
            else:
                with quiet():
                    texts = ["".join(document) for document in read_txt(file, scratch)]
                yield from self._documents_of((f"'{file}'", {"text": text}) for text in texts)

    def _documents_of(self, records: Iterable[Placed]) -> Iterator[Document]:
        for place, record in records:
            try:
                check_columns(record, self._wanted, place)
                passes = all(
                    lets_through(chosen, record, place, number)
                    for number, chosen in enumerate(self._config.filters)
                )
                text = self._text(record, place) if passes else ""
            except ProblemsFound as error:
                self._bad(error)
                continue
            if passes:
                self.read += 1
                yield [text]
            else:
                self.left_out += 1

    def _text(self, record: Mapping[str, Any], place: str) -> str:
        """The text of one record: of a column, or of several put together."""
        if self._config.format is None:
            return checked_text(record[self._config.column], place, self._config.column)
        texts = {}
        for name in format_columns(self._config.format):
            value = record[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            texts[name] = str(value) if number else checked_text(value, place, name, ("format",))
        return "".join(
            text + (texts[name] if name else "")
            for text, name, _, _ in Formatter().parse(self._config.format)
        )


def lets_through(chosen: Filter, record: Mapping[str, Any], place: str, number: int) -> bool:
    """Whether a record passes a filter, the one at `number`. Raises a data problem where its value cannot be compared."""
    value = record[chosen.column]
    if chosen.one_of and (value if isinstance(value, str) else str(value)) not in chosen.one_of:
        return False
    if chosen.at_least is not None or chosen.at_most is not None:
        low, high = chosen.at_least, chosen.at_most
        measured = number_of(value, place, chosen.column, ("filters", number, "column"))
        if (low is not None and not measured >= low) or (high is not None and not measured <= high):
            return False
    length = len(value) if isinstance(value, str) else 0
    return length >= (chosen.min_characters or 0) and (
        chosen.max_characters is None or length <= chosen.max_characters
    )


def number_of(value: object, place: str, column: str, path: DataPath) -> float:
    """The number in a column; CSV has it as text."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except ValueError:
        message = f"{place} has no number in column '{column}'"
        raise fail("data", message, path=path, help="filter by a column of numbers") from None


def read_txt(file: Path, scratch: Path) -> Iterator[Document]:
    """The whole file as one document; an empty file has none."""
    lines = read_lines(file, scratch)
    for first in lines:
        yield chain([first], lines)


def checked_text(value: object, place: str, column: str, path: DataPath = ("column",)) -> str:
    """The text of a document; half a surrogate pair, which JSON can write, is no character and has no token."""
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        message = f"{place} has {kind} in column '{column}', not text"
        raise fail(
            "data", message, path=path, help="leave such documents out, or name a column of text"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{place} has half a surrogate pair in column '{column}', at character {error.start + 1}"
        raise fail(
            "data", message, path=("path",), help="write the character whole, or leave it out"
        ) from None
    return value
