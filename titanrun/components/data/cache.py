"""Tokenised data in a folder that runs share: each index under a name that follows from all that its tokens depend on."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from titanrun.components.data.source_files import SourceFile
from titanrun.components.data.token_writer import sync_folder

FORMAT = 3
WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """What an index was made from and what it holds; stands beside it as JSON.

    `left_out` documents passed no filter; `skipped` records could not be read.
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


def index_key(settings: str, tokenizer: str, contents: Sequence[str]) -> str:
    """The name of an index: what it is made from, by content, and how."""
    return hashlib.sha256(
        json.dumps([FORMAT, settings, tokenizer, list(contents)]).encode()
    ).hexdigest()[:32]


def record_path(folder: Path, key: str) -> Path:
    """Where the record of an index stands."""
    return folder / f"{key}.json"


def tokens_path(folder: Path, key: str) -> Path:
    """Where the tokens of an index stand."""
    return folder / f"{key}.npy"


def known_path(folder: Path, source: str) -> Path:
    """Where is remembered which bytes a source's files held when they were last looked at."""
    return folder / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.files.json"


def read_record(path: Path) -> IndexRecord | None:
    """The record of an index; None where there is none or it is of another format."""
    try:
        data = json.loads(path.read_bytes())
        files = tuple(SourceFile(**entry) for entry in data.pop("files"))
        record = IndexRecord(files=files, **data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if record.format == FORMAT else None


def write_record(path: Path, record: IndexRecord) -> None:
    """Write the record in one step, after which the index counts."""
    write_json(path, asdict(record))


def read_known(path: Path) -> dict[str, SourceFile]:
    """The files of a source as they were when they were last looked at, by path."""
    try:
        return {
            entry["path"]: SourceFile(**entry) for entry in json.loads(path.read_bytes())["files"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_known(path: Path, source: str, files: Sequence[SourceFile]) -> None:
    """Remember the files of a source."""
    write_json(path, {"source": source, "files": [asdict(file) for file in files]})


def write_json(path: Path, data: Any) -> None:
    """Write JSON in one step, so that nobody reads half of it."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


@contextmanager
def one_writer(folder: Path, key: str, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lets one process of this machine after the other in. Where file locks do not reach, two may write: the same bytes, each in one step.

    `on_wait` is called now and then by those that wait.
    """
    path = folder / f".{key}.lock"
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_wait()
                time.sleep(WAIT_SECONDS)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def whole_index(folder: Path, key: str) -> IndexRecord | None:
    """The record of an index that is there whole; None where it must be built."""
    record = read_record(record_path(folder, key))
    tokens = tokens_path(folder, key)
    if record is None or not tokens.is_file() or tokens.stat().st_size != record.size:
        return None
    return record
