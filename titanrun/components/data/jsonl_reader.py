"""Lines of local files, and what the datasets library needs to read files.

Imported only to build an index.
"""

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.spec.compression import (
    is_compressed,
    open_decompressed_text,
)
from titanrun.components.data.spec.data_files import cannot_read_error
from titanrun.components.data.spec.json_lines import get_undecodable_line_number, not_utf8_error
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error

if TYPE_CHECKING:
    import datasets
else:
    # a stream reads the same formats without the library, which takes a second to import
    datasets = LazyModule("datasets")


def iter_file_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without a byte order mark.

    All line ends become a line feed.

    Raises:
        ProblemsFound: A data problem if it cannot be read, is not UTF-8, or is compressed and
            damaged.
    """
    try:
        with open_decompressed_text(file) as lines:
            yield from lines
    except UnicodeDecodeError:
        raise not_utf8_error(f"'{file}' line {get_undecodable_line_number(file)}") from None
    except PermissionError as error:
        raise cannot_read_error(str(file), error) from None
    except OSError as error:
        hint = "fetch or write it again" if is_compressed(file) else "check the disk"
        raise problem_error(
            "data", f"'{file}' cannot be read: {error}", path=("path",), hint=hint
        ) from None


def to_library_path(file: Path) -> str:
    """Return the name by which the library finds exactly this file.

    It reads names as glob patterns, and '::' as a chain of archives.
    """
    absolute = str(file.absolute())
    if "::" in absolute:
        raise problem_error(
            "data",
            f"'{file}' has '::' in its name, which the datasets library cannot open",
            path=("path",),
            hint="rename it",
        )
    return glob.escape(absolute)


@contextmanager
def silence_datasets_library() -> Iterator[None]:
    """Silence log lines and progress bars of the library; errors are raised as problems."""
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
