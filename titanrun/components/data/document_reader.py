"""Documents of local text files, imported only to build an index."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from string import Formatter
from typing import Any

from titanrun.components.data.bad_share import check_bad_share
from titanrun.components.data.config import DocumentsConfig, Filter
from titanrun.components.data.document_split import HOLDOUT_BY, DocumentFilter
from titanrun.components.data.file_spans import FileSpan, iter_span_records
from titanrun.components.data.jsonl_reader import iter_file_lines
from titanrun.components.data.record_readers import (
    BadRecordHandler,
    LocatedRecord,
    iter_records,
    raise_bad_record,
)
from titanrun.components.data.spec.data_files import get_data_suffix
from titanrun.components.data.spec.file_columns import (
    check_columns,
    get_required_columns,
    parse_format_columns,
)
from titanrun.components.data.spec.holdout_hash import (
    compute_holdout_hash,
    compute_text_hash,
    make_column_key,
    make_text_key,
)
from titanrun.config.problems import DataPath, ProblemsFound, problem_error

log = logging.getLogger(__name__)

Document = Iterable[str]
"""Text of one document in consecutive strings."""
MAX_LOGGED_BAD_RECORDS = 5
"""Maximum number of skipped records that are logged one by one."""


class BadRecordPolicy:
    """Handling of records that cannot be read.

    The first one raises, or they are skipped and counted, up to a share of all records.
    """

    def __init__(self, config: DocumentsConfig) -> None:
        self._should_raise = config.bad_records == "refuse"
        self._max_share = config.max_bad_share
        self.num_skipped = 0

    def __call__(self, error: ProblemsFound) -> None:
        """Raise the problem, or count it."""
        if self._should_raise:
            raise error
        self.num_skipped += 1
        if self.num_skipped <= MAX_LOGGED_BAD_RECORDS:
            log.warning("skipped: %s", error.problems[0].message)

    def check(self, num_read: int) -> None:
        """Raise a data problem if too many records were skipped; `num_read` were valid."""
        check_bad_share(self.num_skipped, self.num_skipped + num_read, max_share=self._max_share)


class DocumentReader:
    """Documents of a dataset, made from files by its columns, format and filters.

    `num_read` counts the documents on both sides of a split, `num_filtered` those that no filter
    let through. Documents that `chosen` does not keep are not yielded.
    """

    def __init__(
        self,
        config: DocumentsConfig,
        *,
        on_bad_record: BadRecordHandler = raise_bad_record,
        chosen: DocumentFilter | None = None,
    ) -> None:
        self._config, self._chosen = config, chosen
        self._on_bad_record = on_bad_record
        self._required_columns = dict(get_required_columns(config))
        if chosen is not None and chosen.by is not None:
            self._required_columns.setdefault(chosen.by, (HOLDOUT_BY,))
        self.num_read = 0
        self.num_filtered = 0

    def iter_documents(self, files: Sequence[Path]) -> Iterator[Document]:
        """Yield the documents of all files in order, at most `max_documents`.

        Each must be consumed before the next.

        Raises:
            ProblemsFound: A data problem that names the file, and line and column if known.
        """
        return self._iter_chosen(self._iter_all_documents(files))

    def iter_span_documents(self, span: FileSpan) -> Iterator[Document]:
        """Yield the documents of a part of a file in order, at most `max_documents`."""
        return self.iter_record_documents(
            iter_span_records(
                span, required=self._required_columns, on_bad_record=self._on_bad_record
            )
        )

    def iter_record_documents(self, records: Iterable[LocatedRecord]) -> Iterator[Document]:
        """Yield the documents of given records in order, at most `max_documents`."""
        return self._iter_chosen(self._iter_record_documents(records))

    def _iter_chosen(self, documents: Iterable[Document | None]) -> Iterator[Document]:
        """Yield the documents that are not None, at most `max_documents` of all."""
        for document in documents:
            if document is not None:
                yield document
            if self.num_read == self._config.max_documents:
                return

    def _iter_all_documents(self, files: Sequence[Path]) -> Iterator[Document | None]:
        """Yield each document, None in place of those that are not chosen."""
        needs_column = self._chosen is not None and self._chosen.by is not None
        streams_whole_files = (
            self._config.format is None and not self._config.filters and not needs_column
        )
        for file in files:
            if get_data_suffix(file) != ".txt":
                yield from self._iter_record_documents(
                    iter_records(
                        [file],
                        required=self._required_columns,
                        on_bad_record=self._on_bad_record,
                    )
                )
            elif streams_whole_files:
                for document in iter_txt_documents(file):
                    self.num_read += 1
                    # the hash needs the whole text, which need not fit into memory
                    is_chosen = self._chosen is None or self._chosen.keeps(
                        compute_text_hash(iter_file_lines(file))
                    )
                    yield document if is_chosen else None
            else:
                texts = ["".join(document) for document in iter_txt_documents(file)]
                yield from self._iter_record_documents(
                    (f"'{file}'", {"text": text}) for text in texts
                )

    def _iter_record_documents(self, records: Iterable[LocatedRecord]) -> Iterator[Document | None]:
        """Yield the document of each record, None in place of those that are not chosen."""
        for place, record in records:
            try:
                check_columns(record, self._required_columns, place)
                passes = all(
                    passes_filter(chosen, record, place, number)
                    for number, chosen in enumerate(self._config.filters)
                )
                text = self._build_text(record, place) if passes else ""
            except ProblemsFound as error:
                self._on_bad_record(error)
                continue
            if passes:
                self.num_read += 1
                yield [text] if self._is_chosen(record, text) else None
            else:
                self.num_filtered += 1

    def _is_chosen(self, record: Mapping[str, Any], text: str) -> bool:
        """Return whether the document of a record is chosen by its hash."""
        if self._chosen is None:
            return True
        by = self._chosen.by
        key = make_text_key(text) if by is None else make_column_key(record[by])
        return self._chosen.keeps(compute_holdout_hash(key))

    def _build_text(self, record: Mapping[str, Any], location: str) -> str:
        """Return the text of one record, from one column or from several."""
        if self._config.format is None:
            return check_document_text(record[self._config.column], location, self._config.column)
        texts = {}
        for name in parse_format_columns(self._config.format):
            value = record[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            texts[name] = (
                str(value) if number else check_document_text(value, location, name, ("format",))
            )
        return "".join(
            text + (texts[name] if name else "")
            for text, name, _, _ in Formatter().parse(self._config.format)
        )


def passes_filter(
    record_filter: Filter, record: Mapping[str, Any], location: str, filter_index: int
) -> bool:
    """Return whether a record passes the filter at `filter_index`.

    Raises:
        ProblemsFound: A data problem if its value cannot be compared.
    """
    value = record[record_filter.column]
    if (
        record_filter.one_of
        and (value if isinstance(value, str) else str(value)) not in record_filter.one_of
    ):
        return False
    if record_filter.at_least is not None or record_filter.at_most is not None:
        low, high = record_filter.at_least, record_filter.at_most
        measured = parse_number(
            value, location, record_filter.column, ("filters", filter_index, "column")
        )
        if (low is not None and not measured >= low) or (high is not None and not measured <= high):
            return False
    length = len(value) if isinstance(value, str) else 0
    return length >= (record_filter.min_characters or 0) and (
        record_filter.max_characters is None or length <= record_filter.max_characters
    )


def parse_number(value: object, location: str, column: str, path: DataPath) -> float:
    """Return the number in a column, which CSV holds as text."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except ValueError:
        message = f"{location} has no number in column '{column}'"
        raise problem_error(
            "data", message, path=path, hint="filter by a column of numbers"
        ) from None


def iter_txt_documents(file: Path) -> Iterator[Document]:
    """Yield the whole file as one document, or nothing if the file is empty."""
    lines = iter_file_lines(file)
    first = next(lines, None)
    if first is not None:
        yield chain([first], lines)


def check_document_text(
    value: object, location: str, column: str, path: DataPath = ("column",)
) -> str:
    """Return the text of a document.

    Half a surrogate pair, which JSON can encode, is a data problem: it is not a character and has
    no token.
    """
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        message = f"{location} has {kind} in column '{column}', not text"
        raise problem_error(
            "data", message, path=path, hint="remove such documents, or name a column of text"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = (
            f"{location} has half a surrogate pair in column '{column}', "
            f"at character {error.start + 1}"
        )
        raise problem_error(
            "data", message, path=("path",), hint="write the whole character, or remove it"
        ) from None
    return value
