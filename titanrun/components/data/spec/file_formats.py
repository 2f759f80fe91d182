"""Files of other formats that are named as text files. Torch-free."""

from functools import partial
from itertools import chain, islice
from pathlib import Path

from titanrun.components.data.spec.compression import is_compressed
from titanrun.components.data.spec.data_files import COMPRESSIBLE_SUFFIXES, get_data_suffix
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound, problem_error

FORMATS = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    # the header of the first page follows
    b"PAR1\x15": ("parquet", ".parquet"),
    b"ARROW1\0\0": ("arrow", ".arrow"),
    b"\xfd7zXZ\0": ("xz", None),
    b"PK\x03\x04": ("zip", None),
}
"""Beginnings of files that are no text, with the name of the format and its suffix, None of those
that are not read."""
TEXT_STARTS = tuple(bytes([one]) for one in b'{[" \n\r\t')
"""First bytes of JSON, which no compressed file begins with."""
MAX_FIRST_LINE_BYTES = 2**20
"""Length up to which a line is taken for a whole record."""


def check_is_text(file: Path) -> None:
    """Check that what is named as a text file is not compressed, nor of another format.

    One JSON array is no file of JSON lines.

    Raises:
        ProblemsFound: A data problem with the name that it needs.
        OSError: If the file cannot be read.
    """
    if get_data_suffix(file) not in COMPRESSIBLE_SUFFIXES:
        return
    with file.open("rb") as content:
        start = content.read(max(map(len, FORMATS)))
    name, suffix = next(
        (one for mark, one in FORMATS.items() if start.startswith(mark)), (None, None)
    )
    if is_compressed(file):
        if name is None and start[:1] in TEXT_STARTS:
            raise uncompressed_error(file)
    elif name is not None:
        raise other_format_error(file, name, suffix)
    elif start.lstrip()[:1] == b"[" and get_data_suffix(file) == ".jsonl" and is_one_array(file):
        raise array_error(file)


def is_one_array(file: Path) -> bool:
    """Return whether a file that begins with a bracket is one JSON array, not an array a line."""
    with file.open("rb") as content:
        parts = iter(partial(content.readline, MAX_FIRST_LINE_BYTES), b"")
        first, second = islice(chain(filter(bytes.strip, parts), (b"", b"")), 2)
    try:
        parse_json(first.decode())
    except ValueError:
        return True
    return not second


def array_error(file: Path) -> ProblemsFound:
    """Build the problem of a JSON array that is named as JSON lines."""
    message = f"'{file}' is one JSON array, although its name says {file.suffix}"
    hint = f"name it {file.with_suffix('.json').name}, and let path match that"
    return problem_error("data", message, path=("path",), hint=hint)


def uncompressed_error(file: Path) -> ProblemsFound:
    """Build the problem of a text file whose name says that it is compressed."""
    message = f"'{file}' is not compressed, although its name says {file.suffix}"
    hint = f"name it {file.with_suffix('').name}, and let path match that"
    return problem_error("data", message, path=("path",), hint=hint)


def other_format_error(file: Path, name: str, suffix: str | None) -> ProblemsFound:
    """Build the problem of a file whose name does not tell its format."""
    if suffix is None:
        hint = "decompress it, or compress it as .gz or .zst"
    else:
        renamed = file.with_suffix(suffix).name if len(suffix) > 4 else f"{file.name}{suffix}"
        hint = f"name it {renamed}, and let path match that"
    article = "an" if name[0] in "ax" else "a"
    message = f"'{file}' is {article} {name} file, although its name says {file.suffix}"
    return problem_error("data", message, path=("path",), hint=hint)
