"""Checks and clears a folder of tokenised data."""

import time
from pathlib import Path
from typing import Any

from titanrun.components.data.cache import IndexRecord, read_record, record_path, tokens_path
from titanrun.components.data.source_files import describe_file
from titanrun.components.data.token_file import map_tokens, summarise
from titanrun.config.problems import ProblemsFound

SECONDS_A_DAY = 24 * 3600
STALE_SECONDS = 3600
"""A temporary file this old is left over from a process that died."""


def verify(folder: Path) -> list[dict[str, Any]]:
    """Each index of a folder, with what is wrong with its tokens, and which of its files hold other bytes now."""
    return [
        {
            "name": key,
            **about(record),
            "damage": damage(folder, key, record),
            "changed": changed(record),
        }
        for key, record in indexes(folder)
    ]


def indexes(folder: Path) -> list[tuple[str, IndexRecord]]:
    """The indexes of a folder by name."""
    found = [
        (path.name.removesuffix(".json"), read_record(path))
        for path in sorted(folder.glob("*.json"))
    ]
    return [(key, record) for key, record in found if record is not None]


def about(record: IndexRecord) -> dict[str, Any]:
    """What an index is, in short."""
    return {
        "source": record.source,
        "documents": record.documents,
        "tokens": record.tokens,
        "bytes": record.size,
    }


def damage(folder: Path, key: str, record: IndexRecord) -> str | None:
    """What is wrong with the tokens of an index; None: nothing. Of very large ones a sample is read, as when they are opened."""
    path = tokens_path(folder, key)
    try:
        if path.stat().st_size != record.size:
            return f"{path.stat().st_size} bytes instead of {record.size}"
        digest = summarise(map_tokens(path), source=str(path)).digest
    except FileNotFoundError:
        return "its tokens are gone"
    except ProblemsFound as found:
        return found.problems[0].message
    return None if digest == record.digest else "its tokens are other ones than when it was written"


def changed(record: IndexRecord) -> list[str]:
    """The files of an index that are gone or hold other bytes than when it was made."""
    found = []
    for file in record.files:
        try:
            if describe_file(Path(file.path), file).sha256 != file.sha256:
                found.append(file.path)
        except ProblemsFound:
            found.append(file.path)
    return found


def prune(
    folder: Path, *, everything: bool, days: float | None, really: bool
) -> list[dict[str, Any]]:
    """Removes indexes: all, those not opened for `days`, or else damaged ones and those whose files have changed. Says which.

    Nothing is removed unless `really`. What an index was made of, and whether it is whole, decides; runs that read one that is removed
    stop with a data problem.
    """
    found = []
    for key, record in indexes(folder):
        why = reason(folder, key, record, everything=everything, days=days)
        if why is not None:
            found.append({"name": key, **about(record), "why": why})
            if really:
                record_path(folder, key).unlink(missing_ok=True)
                tokens_path(folder, key).unlink(missing_ok=True)
    for path in sorted(folder.glob(".*.tmp-*")):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            found.append(
                {
                    "name": path.name,
                    "source": "",
                    "bytes": path.stat().st_size,
                    "why": "left by a process that died",
                }
            )
            if really:
                path.unlink(missing_ok=True)
    return found


def reason(
    folder: Path, key: str, record: IndexRecord, *, everything: bool, days: float | None
) -> str | None:
    """Why an index goes; None: it stays."""
    if everything:
        return "all go"
    if days is not None:
        age = (time.time() - record_path(folder, key).stat().st_mtime) / SECONDS_A_DAY
        return f"not opened for {age:.0f} days" if age >= days else None
    if wrong := damage(folder, key, record):
        return wrong
    files = changed(record)
    return f"made of '{files[0]}', which is gone or has changed" if files else None
