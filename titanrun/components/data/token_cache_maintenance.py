"""Verification and cleanup of a folder of token indexes."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.components.data.spec.data_files import describe_file
from titanrun.components.data.token_blocks import find_damaged_block, read_block_digests
from titanrun.components.data.token_cache import (
    FORMAT,
    UNITS,
    IndexRecord,
    UnitEntry,
    find_index_record,
    get_index_blocks_path,
    get_index_record_path,
    get_index_tokens_path,
    write_index_record,
)
from titanrun.components.data.token_file import open_token_memmap, summarize_tokens
from titanrun.components.data.token_writer import BLOCK_BYTES
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound, problem_error

OTHER_TOKENS = "its tokens are other ones than when it was written"
SECONDS_A_DAY = 24 * 3600
STALE_SECONDS = 3600
"""Age in seconds from which a temporary file must be from a process that died."""


def verify_token_cache(folder: Path) -> list[dict[str, Any]]:
    """Return each index of a folder with its damage and its changed source files."""
    broken = [
        {**entry, "damage": entry.pop("why"), "changed": []}
        for entry in list_broken_records(folder)
    ]
    return broken + [
        {
            "name": key,
            **summarize_index_record(record),
            "damage": find_index_damage(folder, key, record),
            "changed": find_changed_files(record),
        }
        for key, record in list_token_indexes(folder)
    ]


def list_token_indexes(folder: Path) -> list[tuple[str, IndexRecord]]:
    """Return the indexes of a folder by name."""
    found = [
        (path.name.removesuffix(".json"), find_index_record(path))
        for path in sorted(folder.glob("*.json"))
    ]
    return [(key, record) for key, record in found if record is not None]


def list_broken_records(folder: Path) -> list[dict[str, Any]]:
    """Return the tokens of a folder whose record is there and cannot be read."""
    return [
        {
            "name": path.stem,
            "source": "",
            "documents": 0,
            "tokens": 0,
            "bytes": path.lstat().st_size,
            "why": "its record cannot be read",
        }
        for path in sorted(folder.glob("*.npy"))
        if is_record_broken(get_index_record_path(folder, path.stem))
    ]


def is_record_broken(path: Path) -> bool:
    """Return whether a file is no record, neither of this format nor of another one."""
    try:
        record = parse_json(path.read_bytes())
    except FileNotFoundError:
        # a process that died, or that is about to write it
        return path.is_symlink()
    except (OSError, ValueError, RecursionError):
        return True
    if not isinstance(record, dict) or "format" not in record:
        return True
    return record["format"] == FORMAT and find_index_record(path) is None


def summarize_index_record(record: IndexRecord) -> dict[str, Any]:
    """Return a short summary of an index."""
    return {
        "source": record.source,
        "documents": record.documents,
        "tokens": record.tokens,
        "bytes": record.size,
    }


def find_index_damage(folder: Path, key: str, record: IndexRecord) -> str | None:
    """Return what is wrong with the tokens of an index, None if nothing.

    Every token is read. Of a very large index without digests of its blocks, which an earlier
    version built, only a sample.
    """
    if record.units:
        return find_unit_damage(folder / UNITS, record.units)
    path = get_index_tokens_path(folder, key)
    try:
        if path.stat().st_size != record.size:
            return f"{path.stat().st_size:,} bytes instead of {record.size:,}"
        tokens = open_token_memmap(path)
        blocks = read_block_digests(
            get_index_blocks_path(folder, key), tokens, index_digest=record.digest
        )
        digest = summarize_tokens(tokens, source=str(path)).digest
    except FileNotFoundError:
        return "its tokens are gone"
    except OSError as error:
        return f"its tokens cannot be read: {(error.strerror or str(error)).lower()}"
    except ProblemsFound as found:
        return found.problems[0].message
    damaged = None if blocks is None else find_damaged_block(tokens, blocks)
    if damaged is not None:
        block_tokens = BLOCK_BYTES // tokens.itemsize
        return f"{OTHER_TOKENS}, from token {damaged * block_tokens:,} on (block {damaged})"
    return None if digest == record.digest else OTHER_TOKENS


def find_unit_damage(folder: Path, units: Sequence[UnitEntry]) -> str | None:
    """Return what is wrong with the first damaged unit of an index, None if nothing."""
    for unit in units:
        record = find_index_record(get_index_record_path(folder, unit.name))
        gone = "it is gone" if record is None else None
        damage = gone if record is None else find_index_damage(folder, unit.name, record)
        if damage is not None:
            return f"{damage}; unit {UNITS}/{unit.name}.npy"
    return None


def discard_damaged_indexes(folder: Path) -> dict[str, IndexRecord]:
    """Remove the records of damaged indexes, so that they are built again; return them by name."""
    found = {
        key: record
        for key, record in list_token_indexes(folder)
        if find_index_damage(folder, key, record) is not None
    }
    for key, record in found.items():
        get_index_record_path(folder, key).unlink(missing_ok=True)
        for unit in record.units:
            if find_unit_damage(folder / UNITS, [unit]) is not None:
                get_index_record_path(folder / UNITS, unit.name).unlink(missing_ok=True)
    return found


def finish_repair(folder: Path, discarded: Mapping[str, IndexRecord]) -> list[dict[str, Any]]:
    """Return the indexes that were built again, and restore the records of all others.

    Raises:
        ProblemsFound: A data problem if one has other tokens than before the damage.
    """
    repaired = []
    for key, before in discarded.items():
        path = get_index_record_path(folder, key)
        now = find_index_record(path)
        if now is None:
            # of another recipe: `data verify` goes on to name it
            write_index_record(path, before)
        elif now.digest != before.digest:
            raise problem_error(
                "data",
                f"'{now.source}' has other tokens than before the damage",
                path=("training", "dataset"),
                hint="the tokenizer has changed: a run that read these tokens cannot go on",
            )
        else:
            repaired.append({"name": key, **summarize_index_record(now)})
    return repaired


def find_changed_files(record: IndexRecord) -> list[str]:
    """Return the source files of an index that are gone or have changed since it was built."""
    found = []
    for file in record.files:
        try:
            if describe_file(Path(file.path), file).sha256 != file.sha256:
                found.append(file.path)
        except ProblemsFound:
            found.append(file.path)
    return found


def prune_token_cache(
    folder: Path, *, should_delete_all: bool, max_unused_days: float | None, should_delete: bool
) -> list[dict[str, Any]]:
    """Remove indexes and return which: all, unused ones, or else damaged and outdated ones.

    Unused indexes were not opened for `max_unused_days`. Outdated indexes have source files that
    changed. Nothing is removed unless `should_delete`. Runs that read a removed index stop with a
    data problem.
    """
    found = [] if max_unused_days is not None else list_broken_records(folder)
    if should_delete:
        for entry in found:
            remove_index(folder, entry["name"])
    for key, record in list_token_indexes(folder):
        why = find_prune_reason(
            folder,
            key,
            record,
            should_delete_all=should_delete_all,
            max_unused_days=max_unused_days,
        )
        if why is not None:
            found.append({"name": key, **summarize_index_record(record), "why": why})
            if should_delete:
                remove_index(folder, key)
    found += prune_units(
        folder,
        {entry["name"] for entry in found},
        lambda key, record: find_prune_reason(
            folder / UNITS,
            key,
            record,
            should_delete_all=should_delete_all,
            max_unused_days=max_unused_days,
        ),
        should_delete=should_delete,
    )
    for path in sorted([*folder.glob(".*.tmp-*"), *folder.glob(f"{UNITS}/.*.tmp-*")]):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            found.append(
                {
                    "name": path.relative_to(folder).as_posix(),
                    "source": "",
                    "bytes": path.stat().st_size,
                    "why": "left by a process that died",
                }
            )
            if should_delete:
                path.unlink(missing_ok=True)
    return found


def prune_units(
    folder: Path,
    pruned: Collection[str],
    find_reason: Callable[[str, IndexRecord], str | None],
    *,
    should_delete: bool,
) -> list[dict[str, Any]]:
    """Remove units that no remaining index has, if there is a reason, and return which.

    Other units stay: they may be waiting for the last part, or for an index of files of which some
    have changed.
    """
    indexes = list_token_indexes(folder)
    kept = {unit.name for key, record in indexes if key not in pruned for unit in record.units}
    found = []
    for key, record in list_token_indexes(folder / UNITS):
        why = None if key in kept else find_reason(key, record)
        if why is not None:
            found.append({"name": f"{UNITS}/{key}", **summarize_index_record(record), "why": why})
            if should_delete:
                remove_index(folder / UNITS, key)
    return found


def remove_index(folder: Path, key: str) -> None:
    """Remove the files of an index."""
    get_index_record_path(folder, key).unlink(missing_ok=True)
    get_index_tokens_path(folder, key).unlink(missing_ok=True)
    get_index_blocks_path(folder, key).unlink(missing_ok=True)


def find_prune_reason(
    folder: Path,
    key: str,
    record: IndexRecord,
    *,
    should_delete_all: bool,
    max_unused_days: float | None,
) -> str | None:
    """Return why to remove an index, None to keep it."""
    if should_delete_all:
        return "all go"
    if max_unused_days is not None:
        age = (time.time() - get_index_record_path(folder, key).stat().st_mtime) / SECONDS_A_DAY
        return f"not opened for {age:.0f} days" if age >= max_unused_days else None
    if wrong := find_index_damage(folder, key, record):
        return wrong
    files = find_changed_files(record)
    return f"made of '{files[0]}', which is missing or has changed" if files else None
