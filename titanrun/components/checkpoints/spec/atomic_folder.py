"""Atomic folders: write to a temporary sibling, fsync, rename."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from titanrun.config.problems import problem_error

# a name that no finished folder has; the nonce separates two writers
TEMPORARY_NAME = re.compile(r"(?P<final>.+)\.tmp-[0-9a-f]{8}")


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `final` to write into, then flush and rename it.

    It is renamed only if the block ends without an error.

    Raises:
        ProblemsFound: A problem `checkpoint` if `final` exists: nothing is ever overwritten.
    """
    temporary = create_temporary_folder(final)
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            fsync_path(file)
        commit_folder(temporary, final)
    finally:
        # something is left under that name only after an error: a full disk must not stay full of
        # unusable files
        shutil.rmtree(temporary, ignore_errors=True)


def create_temporary_folder(final: Path) -> Path:
    """Create a temporary sibling of `final` to write into.

    Raises:
        ProblemsFound: A problem `checkpoint` if `final` exists.
    """
    check_path_is_free(final)
    temporary = get_temporary_path(final)
    temporary.mkdir(parents=True)
    return temporary


def commit_folder(temporary: Path, final: Path) -> None:
    """Rename a folder, whose files are on disk, to its final name.

    Raises:
        ProblemsFound: A problem `checkpoint` if `final` exists.
    """
    fsync_path(temporary)
    # rename silently replaces an empty folder, so check again
    check_path_is_free(final)
    temporary.rename(final)
    fsync_path(final.parent)


def delete_folder_atomically(folder: Path) -> None:
    """Delete `folder` after renaming it, so that a crash leaves no partial folder of its name."""
    temporary = get_temporary_path(folder)
    folder.rename(temporary)
    fsync_path(folder.parent)
    shutil.rmtree(temporary)


def delete_temporary_folders(parent: Path, name_pattern: re.Pattern[str]) -> None:
    """Delete temporary siblings that crashes left in `parent`, of folders that match."""
    for entry in parent.iterdir():
        match = TEMPORARY_NAME.fullmatch(entry.name)
        if (
            match
            and name_pattern.fullmatch(match["final"])
            and entry.is_dir()
            and not entry.is_symlink()
        ):
            shutil.rmtree(entry)


def get_temporary_path(final: Path) -> Path:
    """Return a new name in the same folder, and so in the same file system."""
    return final.with_name(f"{final.name}.tmp-{secrets.token_hex(4)}")


def fsync_path(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_path_is_free(final: Path) -> None:
    """Raise a problem `checkpoint` if `final` exists."""
    if final.exists() or final.is_symlink():
        raise problem_error(
            "checkpoint",
            f"{final} already exists and is never overwritten",
            hint="move it away, or choose another folder",
        )
