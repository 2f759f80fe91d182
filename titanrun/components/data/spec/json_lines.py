"""JSON records of files: parsing, and a look at the first ones and the last one."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.compression import (
    is_compressed,
    open_decompressed_bytes,
    open_decompressed_text,
)
from titanrun.components.data.spec.data_files import cannot_read_error, get_data_suffix
from titanrun.components.data.spec.file_formats import check_is_text
from titanrun.config.json_text import parse_json
from titanrun.config.problems import Problem, ProblemsFound, problem_error

JSONL_HINT = "every line is one JSON object"
NUM_LINES_CHECKED = 100
"""Lines of each file that are parsed before a run, the first ones."""
MAX_LINES_TOLD = 5
"""Bad lines of a file that are named at once."""
MAX_LAST_LINE_BYTES = 2**20
"""Longest last line that is parsed before a run, and size up to which a file is small."""
PARQUET_END = b"PAR1"
DAMAGED = "source-damaged"
"""Rule of problems of damaged compressed, parquet and arrow files."""
DAMAGED_IN_STREAM_HINT = (
    "fetch or write it again, or set bad_files: skip and max_bad_files to leave out the rest of "
    "such files"
)


def check_first_and_last_record(file: Path) -> None:
    """Check that the first lines of a file, and its last one, are JSON objects.

    Of other text files, only that they are text is checked. A download that was cut ends within a
    line, an array without its bracket, or without the end of a parquet file. The end of a
    compressed file is not read.

    Raises:
        ProblemsFound: A data problem with the line.
    """
    check = RECORD_CHECKS.get(get_data_suffix(file))
    try:
        check_is_text(file)
        if check is not None and file.stat().st_size > 0:
            run_record_check(file, check)
    except UnicodeDecodeError:
        raise not_utf8_error(f"'{file}' line {get_undecodable_line_number(file)}") from None
    except PermissionError as error:
        raise cannot_read_error(str(file), error) from None
    except OSError as error:
        raise bad_file_error(f"'{file}' cannot be read: {error}") from None


def run_record_check(file: Path, check: Callable[[Path], None]) -> None:
    """Check the records of a file; a bad one of a compressed file may be damage."""
    try:
        check(file)
    except ProblemsFound as error:
        check_checksum(file, error)
        raise


def check_checksum(file: Path, found: ProblemsFound) -> None:
    """Check that a compressed file with a bad record is whole.

    Raises:
        ProblemsFound: A data problem if it is damaged, which made the record bad.
    """
    if not is_compressed(file):
        return
    try:
        with open_decompressed_bytes(file) as content:
            while content.read(MAX_LAST_LINE_BYTES):
                pass
    except OSError as error:
        message = f"{found.problems[0].message}; the file is damaged: {error}"
        raise problem_error(
            "data", message, path=("path",), hint="fetch or write it again"
        ) from None


def bad_file_error(message: str) -> ProblemsFound:
    """Build the problem of a file whose rest a stream may leave out."""
    return ProblemsFound(
        [
            Problem(
                "data",
                message,
                path=("path",),
                hint="fetch or write it again",
                rule=DAMAGED,
            )
        ]
    )


def check_lines(file: Path) -> None:
    """Check the first lines and the last one, or all lines of a small file.

    Raises:
        ProblemsFound: A data problem for each bad line, at most five. Of a compressed file only
            the first is told: the others may be damage.
    """
    is_small = not is_compressed(file) and file.stat().st_size <= MAX_LAST_LINE_BYTES
    with open_decompressed_text(file) as lines:
        checked = islice(lines, None if is_small else NUM_LINES_CHECKED)
        problems = iter_line_problems(checked, f"'{file}' line")
        found = list(islice(problems, 1 if is_compressed(file) else MAX_LINES_TOLD))
    if found:
        raise ProblemsFound(found)
    for last_line in iter_last_line(file):
        parse_jsonl_line(last_line.decode(), f"'{file}' last line")


def iter_line_problems(lines: Iterable[str], place: str) -> Iterator[Problem]:
    """Yield the problem of each line that is no JSON object; `place` and its number name it."""
    for number, line in enumerate(lines, start=1):
        try:
            if not line.isspace():
                parse_jsonl_line(line, f"{place} {number}")
        except ProblemsFound as error:
            yield from error.problems


def check_array_or_lines(file: Path) -> None:
    """Check the end of an array, or the lines of a file that is none."""
    with open_decompressed_text(file) as text:
        beginning = text.read(MAX_LAST_LINE_BYTES).lstrip()
    if not beginning.startswith("["):
        check_lines(file)
    elif not is_compressed(file) and not read_end(file).endswith(b"]"):
        message = f"'{file}' is an array of JSON without its end"
        raise problem_error("data", message, path=("path",), hint="fetch or write it again")


def check_parquet_end(file: Path) -> None:
    """Check that a parquet file ends as one."""
    with file.open("rb") as content:
        content.seek(max(0, file.stat().st_size - len(PARQUET_END)))
        if content.read() != PARQUET_END:
            raise bad_file_error(f"'{file}' is no whole parquet file")


RECORD_CHECKS: dict[str, Callable[[Path], None]] = {
    ".jsonl": check_lines,
    ".json": check_array_or_lines,
    ".parquet": check_parquet_end,
}


def read_end(file: Path) -> bytes:
    """Return the last bytes of a file, without white space after them."""
    with file.open("rb") as content:
        content.seek(max(0, file.stat().st_size - MAX_LAST_LINE_BYTES))
        return content.read().rstrip()


def iter_last_line(file: Path) -> Iterator[bytes]:
    """Yield the last line that is not blank, unless it is very long, or all there is."""
    if is_compressed(file):
        return
    lines = read_end(file).split(b"\n")
    if len(lines) > 1:
        yield lines[-1]


def parse_jsonl_line(line: str, location: str) -> dict[str, Any]:
    """Return the JSON object in one line."""
    # without its end: what is missing there would be missing at column 1 of the next line
    return check_json_object(parse_json_text(line.rstrip("\r\n"), location), location)


def parse_json_text(text: str, location: str) -> Any:
    """Parse JSON; a problem names the line if the text has several."""
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}" if "\n" in text.rstrip() else ""
        reason = error.msg[:1].lower() + error.msg[1:]
        message = f"{location}{line} column {error.colno} is not JSON: {reason}"
        raise problem_error("data", message, path=("path",), hint=JSONL_HINT) from None
    except ValueError as error:
        raise problem_error(
            "data", f"{location} is not JSON: {error}", path=("path",), hint=JSONL_HINT
        ) from None


def check_json_object(value: object, location: str) -> dict[str, Any]:
    """Return the value if it is a JSON object, else raise a data problem."""
    if not isinstance(value, dict):
        raise problem_error(
            "data", f"{location} is not a JSON object", path=("path",), hint=JSONL_HINT
        )
    return value


def not_utf8_error(location: str) -> ProblemsFound:
    """Build the problem of a line that is not UTF-8."""
    return problem_error(
        "data",
        f"{location} is not UTF-8",
        path=("path",),
        hint="convert the file, for example with iconv",
    )


def get_undecodable_line_number(file: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    with open_decompressed_bytes(file) as lines:
        return next(number for number, line in enumerate(lines, start=1) if not is_utf8(line))


def is_utf8(line: bytes) -> bool:
    """Return whether the bytes are UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
