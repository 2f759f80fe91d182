"""Documents out of local text files, through the datasets library; imported only when an index must be built."""

import glob
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import datasets

from titanrun.config.problems import ProblemsFound, fail

Document = Iterable[str]
"""The text of one document in consecutive strings."""

READ_BATCH = 1024
"""Lines or rows taken from the library at a time."""


def read_documents(files: Sequence[Path], *, column: str, scratch: Path) -> Iterator[Document]:
    """The documents of all files in their order; each must be used up before the next is asked for.

    `scratch` is a folder for the library's own files. Raises a data problem that names file, and line and column where known.
    """
    with quiet():
        for file in files:
            yield from READERS[file.suffix.lower()](file, column, scratch)


def read_txt(file: Path, column: str, scratch: Path) -> Iterator[Document]:
    """The whole file as one document; an empty file has none."""
    lines = read_lines(file, scratch)
    for first in lines:
        yield chain([first], lines)


def read_jsonl(file: Path, column: str, scratch: Path) -> Iterator[Document]:
    """One document from each line that is not empty."""
    for number, line in enumerate(read_lines(file, scratch), start=1):
        if not line.isspace():
            place = f"'{file}' line {number}"
            record = parse_line(line, place)
            if column not in record:
                raise missing_column(place, column, list(record))
            yield [checked_text(record[column], place, column)]


def read_parquet(file: Path, column: str, scratch: Path) -> Iterator[Document]:
    """One document from each row."""
    try:
        columns = open_parquet(file, scratch).column_names or []
        if column not in columns:
            raise missing_column(f"'{file}'", column, columns)
        batches = open_parquet(file, scratch, columns=[column], batch_size=READ_BATCH).iter(batch_size=READ_BATCH)
        texts = chain.from_iterable(batch[column] for batch in batches)
        for number, text in enumerate(texts, start=1):
            yield [checked_text(text, f"'{file}' row {number}", column)]
    # pyarrow's errors are ValueErrors or OSErrors with long texts whose first line says what is wrong
    except (ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise fail("data", f"'{file}' cannot be read as parquet: {reason}", path=("path",), help="fetch or write it again") from None


READERS: dict[str, Callable[[Path, str, Path], Iterator[Document]]] = {".jsonl": read_jsonl, ".parquet": read_parquet, ".txt": read_txt}


def open_parquet(file: Path, scratch: Path, **options: Any) -> datasets.IterableDataset:
    """The rows of one parquet file as a stream."""
    return datasets.Dataset.from_parquet(library_path(file), cache_dir=str(scratch), streaming=True, **options)


def read_lines(file: Path, scratch: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends, which all become a line feed; a byte order mark is left out."""
    try:
        lines = datasets.Dataset.from_text(
            library_path(file), cache_dir=str(scratch), streaming=True, keep_linebreaks=True, encoding="utf-8-sig"
        )
        for batch in lines.iter(batch_size=READ_BATCH):
            yield from batch["text"]
    except UnicodeDecodeError:
        place = f"'{file}' line {first_undecodable_line(file)}"
        raise fail("data", f"{place} is not UTF-8", path=("path",), help="convert the file, for example with iconv") from None
    except OSError as error:
        raise fail("data", f"'{file}' cannot be read: {error}", path=("path",), help="check the file's permissions") from None


def library_path(file: Path) -> str:
    """The name by which the library finds exactly this file: it reads names as glob patterns, and '::' as a chain of archives."""
    absolute = str(file.absolute())
    if "::" in absolute:
        raise fail("data", f"'{file}' has '::' in its name, which the datasets library cannot open", path=("path",), help="rename it")
    return glob.escape(absolute)


def parse_line(line: str, place: str) -> dict[str, Any]:
    """The JSON object in one line."""
    help = 'every line is one object, such as {"text": "..."}'
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{place} column {error.colno} is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise fail("data", message, path=("path",), help=help) from None
    except (ValueError, RecursionError) as error:
        raise fail("data", f"{place} is not JSON: {error}", path=("path",), help=help) from None
    if not isinstance(record, dict):
        raise fail("data", f"{place} is not a JSON object", path=("path",), help=help)
    return record


def checked_text(value: object, place: str, column: str) -> str:
    """The text of a document; half a surrogate pair, which JSON can write, is no character and has no token."""
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        message = f"{place} has {kind} in column '{column}', not text"
        raise fail("data", message, path=("column",), help="leave such documents out, or name a column of text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{place} has half a surrogate pair in column '{column}', at character {error.start + 1}"
        raise fail("data", message, path=("path",), help="write the character whole, or leave it out") from None
    return value


def missing_column(place: str, column: str, columns: Sequence[str]) -> ProblemsFound:
    """The problem of a document without the column that holds the text."""
    known = ", ".join(map(str, columns)) or "none"
    return fail(
        "data", f"{place} has no column '{column}'; it has: {known}", path=("column",), help="set column to the one that holds text"
    )


def first_undecodable_line(file: Path) -> int:
    """Number of the first line that is not UTF-8."""
    with file.open("rb") as lines:
        return next(number for number, line in enumerate(lines, start=1) if not is_utf8(line))


def is_utf8(line: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the library from writing log lines and progress bars; what goes wrong is told as a problem."""
    level, shows_bars = datasets.logging.get_verbosity(), not datasets.utils.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shows_bars:
            datasets.enable_progress_bars()
