"""Folder of token indexes that runs share.

The name of an index is a hash of everything that its tokens depend on.
"""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from titanrun.components.data.spec.data_files import SourceFile
from titanrun.components.data.token_writer import write_file_atomically
from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error

FORMAT = 3
UNITS = "units"
"""Folder of the units of indexes that were built in parts."""
LOCK_POLL_SECONDS = 0.2
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as Lustre without the mount option `flock`."""


@dataclass(frozen=True, slots=True)
class UnitEntry:
    """Part of an index: the index of one span of a file, in the folder of units."""

    name: str
    tokens: int
    size: int


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """Source and content of an index, stored next to it as JSON.

    `left_out` documents passed no filter. `skipped` records could not be read. `other_side`
    documents are held out or, if the index has the held-out ones, trained on. An index that was
    built in parts has `units` instead of a file of its own.
    """

    format: int
    source: str
    tokenizer: str
    settings: str
    files: tuple[SourceFile, ...]
    documents: int
    left_out: int
    skipped: int
    tokens: int
    tokens_file: str
    size: int
    digest: str
    max_token_id: int
    other_side: int = 0
    units: tuple[UnitEntry, ...] = ()


def create_cache_folder(folder: Path) -> None:
    """Create a folder of tokenized data unless it exists.

    Raises:
        ProblemsFound: A data problem if something else has its name or that of a parent.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        raise problem_error(
            "data",
            f"'{folder}' cannot hold tokenized data: {(error.strerror or '').lower()}",
            path=("training", "data_cache"),
            hint="set training.data_cache to a folder, or to the name of a new one",
            is_absolute=True,
        ) from None


def compute_index_key(settings: str, tokenizer: str, content_hashes: Sequence[str]) -> str:
    """Return the name of an index: a hash of its inputs by content, and of the settings."""
    return hashlib.sha256(
        json.dumps([FORMAT, settings, tokenizer, list(content_hashes)]).encode()
    ).hexdigest()[:32]


def get_index_record_path(folder: Path, key: str) -> Path:
    """Return the path of the record of an index."""
    return folder / f"{key}.json"


def get_index_tokens_path(folder: Path, key: str) -> Path:
    """Return the path of the tokens of an index."""
    return folder / f"{key}.npy"


def get_index_blocks_path(folder: Path, key: str) -> Path:
    """Return the path of the digests of the blocks of an index."""
    return folder / f"{key}.blocks"


def get_file_hashes_path(folder: Path, source: str) -> Path:
    """Return the path of the hashes of a source's files as of the last time they were read."""
    return folder / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.files.json"


def find_index_record(path: Path) -> IndexRecord | None:
    """Return the record of an index, None if it does not exist or has another format."""
    try:
        data = parse_json(path.read_bytes())
        files = tuple(SourceFile(**entry) for entry in data.pop("files"))
        units = tuple(UnitEntry(**entry) for entry in data.pop("units", ()))
        record = IndexRecord(files=files, units=units, **data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if record.format == FORMAT else None


def write_index_record(path: Path, record: IndexRecord) -> None:
    """Write the record atomically, which completes the index."""
    write_json_atomically(path, asdict(record))


def read_file_hashes(path: Path) -> dict[str, SourceFile]:
    """Return the files of a source, by path, as of the last time they were read."""
    try:
        return {
            entry["path"]: SourceFile(**entry) for entry in parse_json(path.read_bytes())["files"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def write_file_hashes(path: Path, source: str, files: Sequence[SourceFile]) -> None:
    """Store the hashes of the files of a source."""
    write_json_atomically(path, {"source": source, "files": [asdict(file) for file in files]})


def write_json_atomically(path: Path, data: Any) -> None:
    """Write JSON atomically, so that no reader sees a partial file."""
    write_file_atomically(path, json.dumps(data, indent=1).encode())


@contextmanager
def lock_index(folder: Path, key: str, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lock an index against other processes of this machine.

    If file locks have no effect, two processes may write: the same bytes, each atomically.
    `on_wait` is called repeatedly while waiting.
    """
    path = folder / f".{key}.lock"
    while True:
        with path.open("w") as lock:
            wait_for_lock(lock, on_wait)
            # the process before removed the file: others lock the next one
            if not is_file_at(lock, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def wait_for_lock(file: IO[str], on_wait: Callable[[], None]) -> None:
    """Lock a file, unless its file system has no locks."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            time.sleep(LOCK_POLL_SECONDS)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return
        else:
            return


def is_file_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def find_complete_index(folder: Path, key: str) -> IndexRecord | None:
    """Return the record of a complete index, None if it must be built."""
    record = find_index_record(get_index_record_path(folder, key))
    if record is None:
        return None
    if record.units:
        units = folder / UNITS
        is_complete = all(has_unit(units, unit) for unit in record.units)
    else:
        is_complete = has_size(get_index_tokens_path(folder, key), record.size)
    return record if is_complete else None


def has_unit(folder: Path, unit: UnitEntry) -> bool:
    """Return whether a unit of an index exists."""
    is_recorded = get_index_record_path(folder, unit.name).is_file()
    return is_recorded and has_size(get_index_tokens_path(folder, unit.name), unit.size)


def has_size(path: Path, size: int) -> bool:
    """Return whether a file exists and has this size."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False
