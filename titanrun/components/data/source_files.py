"""The text files that a dataset's path names, and how they are told apart from changed ones."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.data.compressed import COMPRESSIONS
from titanrun.config.problems import ProblemsFound, fail

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow", ".txt")
COMPRESSIBLE = (".jsonl", ".json", ".csv", ".txt")
"""What is also read where another ending, of COMPRESSIONS, follows: text; the other kinds compress within the file."""
LIBRARY_FILES = ("dataset_info.json", "state.json", "dataset_dict.json")
"""What save_to_disk of the datasets library writes beside its data: no records."""
PICTURES = (".jpg", ".jpeg", ".png", ".webp")
CAPTION = ".txt"
TAR_FILES = (".tar",)
SETTLED_SECONDS = 2.0
"""A file younger than this may change again without a change of its time, on file systems with coarse times."""
MOST_NAMES_LISTED = 6


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was when it was read. `mtime_ns` is None where the time cannot vouch for the content."""

    path: str
    size: int
    mtime_ns: int | None
    sha256: str

    def same_content(self, other: "SourceFile") -> bool:
        """Whether both are the same file with the same bytes, whatever their times."""
        return (self.path, self.size, self.sha256) == (other.path, other.size, other.sha256)


def find_files(path: str, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """The readable files that a file name, a folder or a glob names, sorted by name.

    A folder is searched at every depth, without hidden entries and what the datasets library notes beside its data. Raises a data problem
    where nothing readable is found.
    """
    named = Path(path)
    if named.is_file():
        found = [named]
    elif named.is_dir():
        found = [
            file for file in named.rglob("*") if file.is_file() and is_data(file.relative_to(named))
        ]
    else:
        anchor = Path(named.anchor)
        found = [
            file
            for file in anchor.glob(str(named.relative_to(anchor)))
            if file.is_file() and not file.name.startswith(".")
        ]
    readable = sorted((file for file in found if ending(file) in suffixes), key=Path.as_posix)
    if not readable:
        raise nothing_readable(path, found, suffixes)
    return readable


def ending(file: Path) -> str:
    """What a file's name says it is: its last ending in lower case, or the one before where that only says how it is compressed."""
    last, before = file.suffix.lower(), Path(file.stem).suffix.lower()
    return before if last in COMPRESSIONS and before in COMPRESSIBLE else last


def is_data(path: Path) -> bool:
    """Whether no part of the path starts with a dot, as editors' and systems' own files do, and the file is not the library's own."""
    return not any(part.startswith(".") for part in path.parts) and path.name not in LIBRARY_FILES


def no_tar_file(file: Path, error: Exception) -> ProblemsFound:
    """The problem of a tar file that cannot be read, or is compressed, so that nothing in it can be found without reading all of it."""
    help = "name whole tar files that are not compressed"
    return fail(
        "data", f"'{file}' cannot be read as a tar file: {error}", path=("path",), help=help
    )


def nothing_readable(path: str, found: Sequence[Path], suffixes: Sequence[str]) -> ProblemsFound:
    """The problem of a path that names no file that can be read."""
    kinds = ", ".join(suffixes)
    if not found and not Path(path).exists():
        return fail(
            "data",
            f"there is no '{path}'",
            path=("path",),
            help=f"paths are relative to {Path.cwd()}",
        )
    names = ", ".join(sorted(file.name for file in found)[:MOST_NAMES_LISTED]) or "no files"
    return fail(
        "data",
        f"'{path}' names no {kinds} file; found: {names}",
        path=("path",),
        help=f"files are read by their ending: {kinds}",
    )


def describe(files: Sequence[Path], known: Mapping[str, SourceFile]) -> list[SourceFile]:
    """Every file with its hash, which is taken from `known` where size and time are as they were."""
    return [describe_file(file, known.get(str(file))) for file in files]


def describe_file(file: Path, known: SourceFile | None) -> SourceFile:
    """One file with its hash."""
    try:
        status = file.stat()
        if known is not None and (known.size, known.mtime_ns) == (
            status.st_size,
            status.st_mtime_ns,
        ):
            return known
        settled = time.time() - status.st_mtime > SETTLED_SECONDS
        with file.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise fail(
            "data",
            f"'{file}' cannot be read: {error.strerror}",
            path=("path",),
            help="check the file's permissions",
        ) from None
    return SourceFile(str(file), status.st_size, status.st_mtime_ns if settled else None, sha256)


def is_unchanged(file: SourceFile) -> bool:
    """Whether size and, where it can vouch, time of a file are as they were."""
    try:
        status = Path(file.path).stat()
    except OSError:
        return False
    return status.st_size == file.size and file.mtime_ns in (None, status.st_mtime_ns)
