"""Digests of the blocks of users' own token files, kept from their first use in the token cache.

A file that a disk or a person changed in between, with the same size and time, is noticed when the
changed block is read. A file that was written anew is another file, with digests of its own.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.file_change_guard import FileState, find_file_state
from titanrun.components.data.token_blocks import (
    VerifiedTokens,
    find_damaged_block,
    hash_blocks,
    read_block_digests,
    write_block_digests,
)
from titanrun.components.data.token_cache import lock_index, write_json_atomically
from titanrun.components.data.token_file import open_token_memmap
from titanrun.components.data.token_writer import BLOCK_BYTES
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.heartbeat import send_heartbeat

# one that takes long enough to be told about
LARGE_FILE = 1 << 30
RECORD_SUFFIX, BLOCKS_SUFFIX = ".file.json", ".file.blocks"
OWN_FILE_HINT = (
    "copy the file again from where it came; if the new tokens are meant, save them again, so that "
    "the file has another time, and start the same command again"
)
log = logging.getLogger(__name__)


class TokenFileRecord(NamedTuple):
    """Token file whose digests are kept, as of its first use."""

    key: str
    path: str
    size: int
    mtime_ns: int

    def is_current(self) -> bool:
        """Return whether the file still has its size and time."""
        now = find_file_state(Path(self.path))
        return now is not None and (now.size, now.mtime_ns) == (self.size, self.mtime_ns)


def verify_token_file(
    path: Path, tokens: NDArray[np.integer], *, state: FileState | None, cache_folder: Path | None
) -> VerifiedTokens:
    """Return all ids of a token file, in the order of its bytes, checked as they are read.

    The first use of the file reads it once and keeps the digests of its blocks. Several processes
    may call this at once.
    """
    flat = tokens.ravel(order="K")
    digests = load_digests(path, flat, state=state, cache_folder=cache_folder)
    return VerifiedTokens(flat, digests, path=path, discard=lambda: None, damage_hint=OWN_FILE_HINT)


def load_digests(
    path: Path, tokens: NDArray[np.integer], *, state: FileState | None, cache_folder: Path | None
) -> bytes:
    """Return the digests of the blocks, from the cache or else from the file."""
    if state is None or cache_folder is None:
        return hash_blocks(tokens)
    where = str(path.resolve())
    text = json.dumps([where, state.size, state.mtime_ns])
    record = TokenFileRecord(
        hashlib.sha256(text.encode()).hexdigest()[:32], where, state.size, state.mtime_ns
    )
    blocks = cache_folder / f"{record.key}{BLOCKS_SUFFIX}"
    digests = read_block_digests(blocks, tokens, index_digest=record.key)
    if digests is not None:
        return digests
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        with lock_index(cache_folder, record.key, on_wait=send_heartbeat):
            digests = read_block_digests(blocks, tokens, index_digest=record.key)
            if digests is None:
                if state.size >= LARGE_FILE:
                    log.info("computing the digests of '%s', once", path)
                digests = hash_blocks(tokens)
                write_block_digests(blocks, tokens, digests, index_digest=record.key)
                write_json_atomically(
                    cache_folder / f"{record.key}{RECORD_SUFFIX}", record._asdict()
                )
    except OSError as error:
        log.warning("the digests of '%s' cannot be kept in %s: %s", path, cache_folder, error)
        return hash_blocks(tokens)
    return digests


def iter_token_files(folder: Path) -> Iterator[TokenFileRecord]:
    """Yield the token files whose digests a folder keeps."""
    for path in sorted(folder.glob(f"*{RECORD_SUFFIX}")):
        try:
            yield TokenFileRecord(**parse_json(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            continue


def find_token_file_damage(folder: Path, record: TokenFileRecord) -> str | None:
    """Return what is wrong with a token file that has not been written anew, None if nothing."""
    try:
        tokens = open_token_memmap(Path(record.path)).ravel(order="K")
    except ProblemsFound as found:
        return found.problems[0].message
    blocks = folder / f"{record.key}{BLOCKS_SUFFIX}"
    digests = read_block_digests(blocks, tokens, index_digest=record.key)
    if digests is None:
        return None
    damaged = find_damaged_block(tokens, digests)
    if damaged is None:
        return None
    first = damaged * (BLOCK_BYTES // tokens.itemsize)
    return f"its tokens are other ones than at its first use, from token {first:,} on"


def verify_token_files(folder: Path) -> list[dict[str, Any]]:
    """Return the token files of a folder, with what is wrong with them, as `verify_token_cache`."""
    return [
        {
            **summarize_token_file(folder, record),
            "damage": find_token_file_damage(folder, record) if record.is_current() else None,
            "changed": [] if record.is_current() else [record.path],
        }
        for record in iter_token_files(folder)
    ]


def prune_token_files(
    folder: Path, *, should_delete_all: bool, should_delete: bool
) -> list[dict[str, Any]]:
    """Remove digests of files that are gone or were written anew, or all, and return which."""
    found = []
    for record in iter_token_files(folder):
        if record.is_current() and not should_delete_all:
            continue
        why = (
            "all go"
            if should_delete_all
            else f"of '{record.path}', which is missing or has changed"
        )
        found.append({**summarize_token_file(folder, record), "why": why})
        if should_delete:
            for suffix in (RECORD_SUFFIX, BLOCKS_SUFFIX):
                (folder / f"{record.key}{suffix}").unlink(missing_ok=True)
    return found


def summarize_token_file(folder: Path, record: TokenFileRecord) -> dict[str, Any]:
    """Return a short summary of the digests of a file. Their size is that of the digests."""
    blocks = folder / f"{record.key}{BLOCKS_SUFFIX}"
    return {
        "name": f"{record.key} (digests)",
        "source": record.path,
        "bytes": blocks.stat().st_size if blocks.exists() else 0,
    }
