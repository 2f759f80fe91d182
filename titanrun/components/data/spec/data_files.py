"""Data files at a dataset's path, and detection of changed ones."""

import errno
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.data.spec.compression import COMPRESSION_SUFFIXES
from titanrun.components.data.spec.folder_files import is_file_or_dangling, iter_folder_files
from titanrun.config.near_path import expand_braces, explain_missing_path
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow", ".txt")
COMPRESSIBLE_SUFFIXES = (".jsonl", ".json", ".csv", ".txt")
"""Suffixes that may be followed by one of COMPRESSION_SUFFIXES: text. The other formats compress
within the file."""
LIBRARY_FILES = ("dataset_info.json", "state.json", "dataset_dict.json")
"""Files that save_to_disk of the datasets library writes next to its data: not records."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
CAPTION_SUFFIX = ".txt"
TAR_SUFFIXES = (".tar",)
MIN_SETTLED_SECONDS = 2.0
"""Age in seconds from which a file's time is reliable: on file systems with coarse times, a younger
file may change again without a new time."""
MAX_NAMES_LISTED = 6
GONE = "source-gone"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """State of a file when it was read.

    `mtime_ns` is None if the time does not guarantee the content.
    """

    path: str
    size: int
    mtime_ns: int | None
    sha256: str

    def has_same_content(self, other: "SourceFile") -> bool:
        """Return whether both are the same file with the same bytes, regardless of their times."""
        return (self.path, self.size, self.sha256) == (other.path, other.size, other.sha256)


def resolve_data_files(path: str, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """Return the readable files at a file name, a folder or a glob, sorted by name.

    Alternatives in braces, as in `data/{a,b}.jsonl`, have to exist all.

    A folder is searched recursively, also behind links to folders, without hidden entries and the
    metadata files of the datasets library.

    Raises:
        ProblemsFound: A data problem if nothing readable is found, or a link leads nowhere.
    """
    each = [find_readable_files(one, suffixes) for one in expand_braces(path)]
    readable = sorted({file for files in each for file in files}, key=Path.as_posix)
    dangling = [str(file) for file in readable if not file.exists()]
    if dangling:
        raise dangling_links_error(dangling)
    return readable


def find_readable_files(path: str, suffixes: Sequence[str]) -> list[Path]:
    """Return the readable files of a path without braces. Raise ProblemsFound if there are none."""
    try:
        found = find_data_files(Path(path))
    except OSError as error:
        raise cannot_read_error(error.filename, error) from None
    readable = [file for file in found if get_data_suffix(file) in suffixes]
    if not readable:
        raise no_readable_files_error(path, found, suffixes)
    return readable


def find_data_files(named: Path) -> list[Path]:
    """Return the file, those in a folder or those that match a glob, with links that lead nowhere.

    Raises:
        OSError: If a folder cannot be read. pathlib takes it for an empty one.
    """
    if named.is_file():
        return [named]
    if named.is_dir():
        check_can_list(named)
        return list(iter_folder_files(named, is_searched))
    existing = next((folder for folder in named.parents if folder.is_dir()), None)
    if existing is not None:
        check_can_list(existing)
    anchor = Path(named.anchor)
    return [
        file
        for file in anchor.glob(str(named.relative_to(anchor)))
        if is_file_or_dangling(file) and not file.name.startswith(".")
    ]


def is_searched(entry: Path) -> bool:
    """Return whether a file or folder within a data folder is data.

    Raises:
        PermissionError: If it is a folder that cannot be read.
    """
    if not is_data_path(Path(entry.name)):
        return False
    if entry.is_dir():
        check_can_list(entry)
    return True


def dangling_links_error(links: Sequence[str]) -> ProblemsFound:
    """Build the problem of links that lead nowhere."""
    more = f" and {len(links) - MAX_NAMES_LISTED} more" * (len(links) > MAX_NAMES_LISTED)
    names = ", ".join(f"'{link}'" for link in links[:MAX_NAMES_LISTED])
    message = f"{names}{more} cannot be read: {'a link' if len(links) == 1 else 'links'} to nothing"
    hint = "restore what it links to, or remove the link"
    return ProblemsFound([Problem("data", message, path=("path",), hint=hint, rule=GONE)])


def check_can_list(folder: Path) -> None:
    """Raise PermissionError if the files of a folder cannot be listed and opened."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def cannot_read_error(path: str, error: OSError) -> ProblemsFound:
    """Build the problem of a file or folder that cannot be read."""
    return problem_error(
        "data",
        f"'{path}' cannot be read: {error.strerror}",
        path=("path",),
        hint="check its permissions",
    )


def get_data_suffix(file: Path) -> str:
    """Return the suffix that tells a file's format, in lower case.

    It is the last suffix, or the one before if the last one is a compression.
    """
    last, before = file.suffix.lower(), Path(file.stem).suffix.lower()
    return before if last in COMPRESSION_SUFFIXES and before in COMPRESSIBLE_SUFFIXES else last


def is_data_path(path: Path) -> bool:
    """Return whether no part of the path starts with a dot and it is not a library file.

    Names with a dot are files of editors and systems.
    """
    return not any(part.startswith(".") for part in path.parts) and path.name not in LIBRARY_FILES


def unreadable_tar_error(file: Path, error: Exception) -> ProblemsFound:
    """Build the problem of a tar file that cannot be read, or is compressed.

    Members of a compressed one can only be found by reading all of it.
    """
    hint = "name complete tar files that are not compressed"
    return problem_error(
        "data", f"'{file}' cannot be read as a tar file: {error}", path=("path",), hint=hint
    )


def no_readable_files_error(
    path: str, found: Sequence[Path], suffixes: Sequence[str]
) -> ProblemsFound:
    """Build the problem of a path without readable files."""
    kinds = ", ".join(suffixes)
    if not found and "://" not in path and not Path(path).exists():
        return problem_error(
            "data",
            f"file not found: '{path}'",
            path=("path",),
            hint=explain_missing_path(path),
        )
    names = ", ".join(sorted(file.name for file in found)[:MAX_NAMES_LISTED]) or "no files"
    is_file = [str(file) for file in found] == [path]
    return problem_error(
        "data",
        f"'{path}' is not a {format_word_list(suffixes)} file"
        if is_file
        else f"'{path}' names no {kinds} file; found: {names}",
        path=("path",),
        hint=f"files are read by their suffix: {kinds}",
    )


def describe_files(files: Sequence[Path], known: Mapping[str, SourceFile]) -> list[SourceFile]:
    """Return every file with its hash, taken from `known` if size and time are unchanged."""
    return [describe_file(file, known.get(str(file))) for file in files]


def describe_file(file: Path, known: SourceFile | None) -> SourceFile:
    """Return one file with its hash."""
    try:
        status = file.stat()
        if known is not None and (known.size, known.mtime_ns) == (
            status.st_size,
            status.st_mtime_ns,
        ):
            return known
        mtime_ns = find_settled_mtime(status)
        with file.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise cannot_read_error(str(file), error) from None
    return SourceFile(str(file), status.st_size, mtime_ns, sha256)


def find_settled_mtime(status: os.stat_result) -> int | None:
    """Return the time of a file that is about to be read, None if it may change again unseen."""
    settled = time.time() - status.st_mtime > MIN_SETTLED_SECONDS
    return status.st_mtime_ns if settled else None


def is_file_unchanged(file: SourceFile) -> bool:
    """Return whether size and, if reliable, time of a file are unchanged."""
    try:
        status = Path(file.path).stat()
    except OSError:
        return False
    return status.st_size == file.size and file.mtime_ns in (None, status.st_mtime_ns)
