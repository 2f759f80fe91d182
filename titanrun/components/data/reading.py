"""Lines and JSON objects of local files, through the datasets library; imported only when an index must be built."""

import glob
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets

from titanrun.components.data.compressed import is_compressed, opened_bytes, opened_text
from titanrun.config.problems import fail

READ_BATCH = 1024
"""Lines taken from the library at a time."""
OBJECTS = "every line is one JSON object"


def read_lines(file: Path, scratch: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends, which all become a line feed; a byte order mark is left out.

    Raises a data problem where it cannot be read, is not UTF-8, or is compressed and damaged.
    """
    try:
        if is_compressed(file):
            with opened_text(file) as unpacked:
                yield from unpacked
            return
        lines = datasets.Dataset.from_text(
            library_path(file),
            cache_dir=str(scratch),
            streaming=True,
            keep_linebreaks=True,
            encoding="utf-8-sig",
        )
        for batch in lines.iter(batch_size=READ_BATCH):
            yield from batch["text"]
    except UnicodeDecodeError:
        place = f"'{file}' line {first_undecodable_line(file)}"
        raise fail(
            "data",
            f"{place} is not UTF-8",
            path=("path",),
            help="convert the file, for example with iconv",
        ) from None
    except OSError as error:
        help = "fetch or write it again" if is_compressed(file) else "check the file's permissions"
        raise fail("data", f"'{file}' cannot be read: {error}", path=("path",), help=help) from None


def library_path(file: Path) -> str:
    """The name by which the library finds exactly this file: it reads names as glob patterns, and '::' as a chain of archives."""
    absolute = str(file.absolute())
    if "::" in absolute:
        raise fail(
            "data",
            f"'{file}' has '::' in its name, which the datasets library cannot open",
            path=("path",),
            help="rename it",
        )
    return glob.escape(absolute)


def parse_line(line: str, place: str) -> dict[str, Any]:
    """The JSON object in one line."""
    return as_record(parse_json(line, place), place)


def parse_json(text: str, place: str) -> Any:
    """What a text of JSON says; of several lines, a problem with it names the one."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}" if "\n" in text.rstrip() else ""
        message = f"{place}{line} column {error.colno} is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise fail("data", message, path=("path",), help=OBJECTS) from None
    except (ValueError, RecursionError) as error:
        raise fail("data", f"{place} is not JSON: {error}", path=("path",), help=OBJECTS) from None


def as_record(value: object, place: str) -> dict[str, Any]:
    """A record is a JSON object."""
    if not isinstance(value, dict):
        raise fail("data", f"{place} is not a JSON object", path=("path",), help=OBJECTS)
    return value


def first_undecodable_line(file: Path) -> int:
    """Number of the first line that is not UTF-8."""
    with opened_bytes(file) as lines:
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
    level, shows_bars = (
        datasets.logging.get_verbosity(),
        not datasets.utils.are_progress_bars_disabled(),
    )
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shows_bars:
            datasets.enable_progress_bars()
