"""Access to files below a folder that no link can lead out of.

Each folder on the way is opened without following links, so that nothing can be swapped between a
check and the use.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from titanrun.ui.refusal import Refusal

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
MAX_PATH_LENGTH = 1024


def split_path(name: str) -> list[str]:
    """Return the parts of a path below a folder.

    Raises:
        Refusal: The path is absolute, leads upwards, or cannot be a path.
    """
    parts = name.split("/")
    is_plain = 0 < len(name) <= MAX_PATH_LENGTH and not {"", ".", ".."}.intersection(parts)
    if not is_plain or "\0" in name or "\\" in name:
        raise Refusal(403, "path", "only files below the workspace are accessible")
    return parts


def confine(root: Path, name: str) -> list[str]:
    """Return the parts of the real path of `name` below `root`, links inside it followed.

    Raises:
        Refusal: It is outside.
    """
    split_path(name)
    try:
        real = (root / name).resolve()
    except (OSError, RuntimeError, ValueError):
        raise Refusal(403, "path", "only files below the workspace are accessible") from None
    if real == root or not real.is_relative_to(root):
        raise Refusal(403, "path", "only files below the workspace are accessible")
    return list(real.relative_to(root).parts)


@contextmanager
def open_folder(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open a folder below `root`; none of its parts may be a link."""
    handle = os.open(root, FOLDER_FLAGS)
    try:
        for part in parts:
            try:
                below = os.open(part, FOLDER_FLAGS, dir_fd=handle)
            except OSError as error:
                raise build_access_refusal(error) from None
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def read_below(root: Path, name: str, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file below `root`, and its state.

    Raises:
        Refusal: It is outside, missing, no regular file, or too large.
    """
    parts = confine(root, name)
    with open_folder(root, parts[:-1]) as folder:
        try:
            handle = os.open(parts[-1], FILE_FLAGS, dir_fd=folder)
        except OSError as error:
            raise build_access_refusal(error) from None
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise Refusal(403, "path", "this is not a file")
            data = file.read(max_bytes + 1)
            if len(data) > max_bytes:
                raise Refusal(413, "size", f"the file has more than {max_bytes:,} bytes")
            return data, about


def replace_below(root: Path, name: str, data: bytes, mode: int, *, is_new: bool) -> None:
    """Write a file below `root`: to a sibling, flushed to disk, then renamed over the target.

    Raises:
        Refusal: It is outside, or cannot be written.
    """
    parts = confine(root, name)
    with open_folder(root, parts[:-1]) as folder:
        part = f".{parts[-1]}.tmp-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            with os.fdopen(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                # unlike a rename, a link never replaces what someone else has just written
                os.link(part, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                os.unlink(part, dir_fd=folder)
            else:
                os.rename(part, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise build_access_refusal(error) from None


def build_access_refusal(error: OSError) -> Refusal:
    """Return the refusal for a file that cannot be opened."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return Refusal(403, "path", "only files below the workspace are accessible")
    if error.errno == errno.ENOENT:
        return Refusal(404, "file", "the file does not exist")
    if error.errno == errno.EEXIST:
        return Refusal(412, "changed", "the file exists already")
    return Refusal(403, "file", f"no access: {(error.strerror or str(error)).lower()}")
