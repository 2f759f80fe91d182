"""Text files that are compressed, read as they are unpacked; no torch here, since the rules look at first records."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

COMPRESSIONS = (".gz", ".zst")


def is_compressed(file: Path) -> bool:
    """Whether its name says so."""
    return file.suffix.lower() in COMPRESSIONS


@contextmanager
def opened_bytes(file: Path) -> Iterator[Any]:
    """What a file holds, unpacked while it is read. Raises OSError where it is damaged or ends in the middle."""
    with ExitStack() as opened:
        try:
            if file.suffix.lower() == ".gz":
                yield opened.enter_context(gzip.open(file, "rb"))
            elif file.suffix.lower() == ".zst":
                # pyarrow, since it tells where a stream ends too early
                yield opened.enter_context(
                    import_module("pyarrow").input_stream(str(file), compression="zstd")
                )
            else:
                yield opened.enter_context(file.open("rb"))
        except (EOFError, zlib.error) as error:
            raise OSError(f"it is damaged: {error}") from error


@contextmanager
def opened_text(file: Path, *, newline: str | None = None) -> Iterator[TextIO]:
    """The UTF-8 text of a file without a byte order mark; `newline` as of open. Raises OSError and UnicodeDecodeError."""
    with (
        opened_bytes(file) as raw,
        TextIOWrapper(raw, encoding="utf-8-sig", newline=newline) as text,
    ):
        yield text
