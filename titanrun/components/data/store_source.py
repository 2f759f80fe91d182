"""Files of object stores, requested in ranges of bytes through fsspec."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from titanrun.components.checkpoints.spec.storage_path import (
    StoragePath,
    open_filesystem,
    translate_store_errors,
)
from titanrun.components.data.source_faults import FaultKind, SourceFault
from titanrun.components.data.spec.remote_path import get_scheme, has_glob

VERSION_KEYS = (
    "generation",
    "ETag",
    "etag",
    "version_id",
    "md5Hash",
    "content_md5",
    "LastModified",
    "last_modified",
    "updated",
)
"""What stores call that which changes with the content of an object, the most reliable first."""


class StoreSource:
    """Object of a store.

    Args:
        location: Address.
        size: Size in bytes, as of the plan of the stream.
        version: Version as of the plan of the stream.
    """

    def __init__(self, location: str, *, size: int, version: str) -> None:
        self._location, self._size, self._version = location, size, version
        self._was_checked = False

    def fetch(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`.

        Raises:
            SourceFault: If the request fails, or the object has changed.
        """
        store = open_store(self._location)
        if not self._was_checked:
            self._check(store)
            self._was_checked = True
        with translate_faults(self._location):
            content: bytes = store.cat_file(self._location, start=start, end=end)
        if len(content) < end - start:
            # of a shorter object, unless the connection was closed early
            store.invalidate_cache()
            self._check(store)
        return content

    def _check(self, store: Any) -> None:
        """Raise a fault if the object is not that of the plan."""
        with translate_faults(self._location):
            info = store.info(self._location)
        size, version = int(info["size"]), find_object_version(info)
        if (size, version) != (self._size, self._version):
            reason = f"it has {size:,} bytes and version '{version}', not those of the start"
            raise SourceFault("changed", reason)


def list_objects(path: str) -> dict[str, Mapping[str, Any]]:
    """Return size and version of the objects at an address, a folder or a glob, by their keys.

    Raises:
        SourceFault: If the request fails.
    """
    with translate_faults(path):
        store = open_filesystem(get_scheme(path))
        if has_glob(path):
            found = store.glob(path, detail=True)
        elif (info := store.info(path))["type"] == "file":
            found = {info["name"]: info}
        else:
            found = store.find(path, detail=True)
        return {str(key): info for key, info in found.items() if info["type"] == "file"}


def find_object_version(info: Mapping[str, Any]) -> str:
    """Return what changes with the content of an object, empty if the store tells nothing."""
    return next((str(info[key]) for key in VERSION_KEYS if info.get(key)), "")


def open_store(location: str) -> Any:
    """Return the file system of an address.

    Raises:
        ProblemsFound: If its library is not installed.
    """
    with translate_faults(location):
        return open_filesystem(get_scheme(location))


@contextmanager
def translate_faults(location: str) -> Iterator[None]:
    """Raise the errors of a store's library as faults."""
    try:
        with translate_store_errors(StoragePath(location)):
            yield
    except FileNotFoundError as error:
        raise SourceFault("gone", "the store has no such object") from error
    except PermissionError as error:
        raise SourceFault("refused", str(error.strerror)) from error
    except OSError as error:
        # some list all places where they looked
        reason = str(error.strerror or error).partition("\n")[0]
        # libraries of stores have no common error for this
        kind: FaultKind = "refused" if "credential" in reason.lower() else "unreachable"
        raise SourceFault(kind, reason) from error
