"""Text files that are decompressed while they are read.

Torch-free, since the rules read first records.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

COMPRESSION_SUFFIXES = (".gz", ".zst")


def is_compressed(file: Path) -> bool:
    """Return whether the file name has a compression suffix."""
    return file.suffix.lower() in COMPRESSION_SUFFIXES


@contextmanager
def open_decompressed_bytes(file: Path) -> Iterator[Any]:
    """Open a file for reading bytes, decompressed if necessary.

    Raises:
        OSError: If it is damaged or truncated.
    """
    with ExitStack() as opened:
        try:
            if file.suffix.lower() == ".gz":
                yield opened.enter_context(gzip.open(file, "rb"))
            elif file.suffix.lower() == ".zst":
                # pyarrow, since it detects a truncated stream
                yield opened.enter_context(
                    import_module("pyarrow").input_stream(str(file), compression="zstd")
                )
            else:
                yield opened.enter_context(file.open("rb"))
        except (EOFError, zlib.error) as error:
            raise OSError(f"it is damaged: {error}") from error


@contextmanager
def open_decompressed_text(file: Path, *, newline: str | None = None) -> Iterator[TextIO]:
    """Open the UTF-8 text of a file without a byte order mark; `newline` as in `open`.

    Raises:
        OSError: If it is damaged or truncated.
        UnicodeDecodeError: If it is not UTF-8.
    """
    with (
        open_decompressed_bytes(file) as raw,
        TextIOWrapper(raw, encoding="utf-8-sig", newline=newline) as text,
    ):
        yield text
