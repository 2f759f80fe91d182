"""Lines and JSON objects of local files, through the datasets library; imported only when an index must be built."""

import glob
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets

from titanrun.config.problems import fail

READ_BATCH = 1024
"""Lines taken from the library at a time."""


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
