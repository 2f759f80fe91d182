"""Blocks of shared memory: files in a file system in memory, each locked by its owner.

A block that nobody locks was left by a process that died. Locks, unlike process ids, also tell this
to containers that share the file system.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK_PREFIX = "titanrun-weights-"
BLOCK_NAME = re.compile(re.escape(BLOCK_PREFIX) + r"[0-9]+-[A-Za-z0-9_]+")
# file system in memory
SHARED_MEMORY = Path("/dev/shm")
# within a folder of blocks
LOCK_FILE = ".lock"


def get_shared_memory_folder() -> Path:
    """Return the folder of all blocks, that of temporary files without a file system in memory."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def find_block(name: object) -> Path | None:
    """Return the path of the block of that name, None if no block can have it or there is none."""
    if not isinstance(name, str) or BLOCK_NAME.fullmatch(name) is None:
        return None
    path = get_shared_memory_folder() / name
    return None if path.is_symlink() or not path.is_file() else path


def create_block() -> tuple[Path, int]:
    """Create an empty block and return it with its descriptor, which holds the lock."""
    while True:
        handle, name = tempfile.mkstemp(
            prefix=f"{BLOCK_PREFIX}{os.getpid()}-", dir=get_shared_memory_folder()
        )
        fcntl.flock(handle, fcntl.LOCK_EX)
        # another process may have removed it before it was locked
        if os.fstat(handle).st_nlink:
            return Path(name), handle
        os.close(handle)


@contextmanager
def open_block_folder() -> Iterator[Path]:
    """Create a folder of blocks, locked and removed like a block."""
    folder = Path(
        tempfile.mkdtemp(prefix=f"{BLOCK_PREFIX}{os.getpid()}-", dir=get_shared_memory_folder())
    )
    try:
        with (folder / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_if_abandoned(path: Path) -> bool:
    """Remove a block, or a folder of blocks, whose owner died. Return whether it was removed."""
    lock = path / LOCK_FILE if path.is_dir() else path
    try:
        handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def sweep_abandoned_blocks() -> list[str]:
    """Remove all blocks of this user whose owners died, and return their names."""
    found = []
    for path in sorted(get_shared_memory_folder().glob(f"{BLOCK_PREFIX}*")):
        try:
            is_own = path.lstat().st_uid == os.getuid() and not path.is_symlink()
        except OSError:
            continue
        if is_own and BLOCK_NAME.fullmatch(path.name) and remove_if_abandoned(path):
            found.append(path.name)
    return found
