"""Folders that are there whole or not at all: written beside their place, made durable, then renamed into it."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from titanrun.config.problems import fail

# a name that no finished folder has; the nonce keeps two writers apart
TEMPORARY = re.compile(r"(?P<final>.+)\.tmp-[0-9a-f]{8}")


@contextmanager
def written_whole(final: Path) -> Iterator[Path]:
    """A temporary sibling of `final` to write into; it is flushed to disk and renamed when the block ends without an error.

    Raises a problem `checkpoint` where `final` exists: nothing is ever written over.
    """
    temporary = started(final)
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            sync(file)
        commit(temporary, final)
    finally:
        # nothing is left under that name but after an error: a full disk must not stay full of what cannot be used
        shutil.rmtree(temporary, ignore_errors=True)


def started(final: Path) -> Path:
    """A temporary sibling of `final` to write into. Raises a problem `checkpoint` where `final` exists."""
    refuse_existing(final)
    temporary = temporary_sibling(final)
    temporary.mkdir(parents=True)
    return temporary


def commit(temporary: Path, final: Path) -> None:
    """Give a folder, whose files are on disk, its name. Raises a problem `checkpoint` where something has that name."""
    sync(temporary)
    # rename replaces an empty folder without a word, so look once more
    refuse_existing(final)
    temporary.rename(final)
    sync(final.parent)


def remove_whole(folder: Path) -> None:
    """Delete `folder`, which loses its name first: what a crash leaves of it is never taken for the whole."""
    temporary = temporary_sibling(folder)
    folder.rename(temporary)
    sync(folder.parent)
    shutil.rmtree(temporary)


def sweep(parent: Path, finals: re.Pattern[str]) -> None:
    """Delete the temporary siblings that crashes left in `parent` of folders whose name matches `finals`."""
    for entry in parent.iterdir():
        match = TEMPORARY.fullmatch(entry.name)
        if match and finals.fullmatch(match["final"]) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)


def temporary_sibling(final: Path) -> Path:
    """A fresh name beside `final`, in the same file system."""
    return final.with_name(f"{final.name}.tmp-{secrets.token_hex(4)}")


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(final: Path) -> None:
    """Raise a problem `checkpoint` where `final` is taken."""
    if final.exists() or final.is_symlink():
        raise fail(
            "checkpoint",
            f"{final} exists and is never written over",
            help="move it away, or choose another folder",
        )
