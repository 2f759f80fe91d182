"""Paths of checkpoints: local folders and storage URLs such as s3://bucket/run.

Both have the same few operations. Object storage is accessed through fsspec, imported when a URL is
used. Credentials come from the environment (the store's own variables and files). Torch-free.
"""

import errno
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import IO, Annotated, Any, TypeAlias

from annotated_types import Len
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.types import validate_line, validate_run_path

# one slash: PurePath, which a folder's name may have passed through, merges two
STORAGE_PATH = re.compile(r"(?P<store>[A-Za-z][A-Za-z0-9+.-]+):/")
CREDENTIALS = re.compile(r"[^/]*://[^/]*@|.*[?#]")
# package that each store needs besides fsspec, and the extra of titanrun that installs it
STORE_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}
PACKAGE_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs", "adlfs": "azure"}
CREDENTIALS_HINT = (
    "write the bucket and the path only; credentials come from the store's environment variables"
)
COPY_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True, order=True)
class StoragePath:
    """Folder or file in object storage, with the interface of Path.

    All errors of the store are raised as OSError with an errno.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> "StoragePath":
        return StoragePath(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """Last component."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> "StoragePath":
        """Parent folder."""
        return StoragePath(self.text.rpartition("/")[0])

    def with_name(self, name: str) -> "StoragePath":
        """Return the sibling of that name."""
        return self.parent / name

    def exists(self) -> bool:
        """Return whether it is an object, or a folder with an object in it."""
        return self._find_info() is not None

    def is_file(self) -> bool:
        """Return whether it is an object."""
        found = self._find_info()
        return found is not None and found["type"] == "file"

    def is_dir(self) -> bool:
        """Return whether there are objects below it."""
        found = self._find_info()
        return found is not None and found["type"] == "directory"

    def get_size(self) -> int:
        """Return the size of the object in bytes."""
        found = self._find_info()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.text)
        return int(found["size"])

    def iterdir(self) -> Iterator["StoragePath"]:
        """Yield its direct children."""
        with translate_store_errors(self):
            found = self._get_filesystem().ls(self._get_key(), detail=False)
        names = [
            str(key).rstrip("/").rpartition("/")[2]
            for key in found
            if str(key).strip("/") != self._get_key().strip("/")
        ]
        return (self / name for name in sorted(names))

    def list_files(self) -> list["StoragePath"]:
        """Return all objects below it."""
        with translate_store_errors(self):
            found = self._get_filesystem().find(self._get_key())
        start = len(self._get_key().strip("/")) + 1
        return [self / str(key).strip("/")[start:] for key in sorted(found)]

    def open(self, mode: str = "rb", **_: object) -> IO[bytes]:
        """Open the object as a stream; a written object exists once the stream is closed."""
        with translate_store_errors(self):
            stream: IO[bytes] = self._get_filesystem().open(self._get_key(), mode.replace("x", "w"))
        return stream

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        with translate_store_errors(self):
            return bytes(self._get_filesystem().cat_file(self._get_key()))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of the object as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> None:
        """Write a new object of these bytes."""
        with translate_store_errors(self):
            self._get_filesystem().pipe_file(self._get_key(), content)

    def unlink(self) -> None:
        """Delete the object."""
        with translate_store_errors(self):
            self._get_filesystem().rm_file(self._get_key())

    def delete_files(self, names: Sequence[str]) -> None:
        """Delete these objects in it, in one request if the store can."""
        if names:
            with translate_store_errors(self):
                self._get_filesystem().rm(
                    [f"{self._get_key().rstrip('/')}/{name}" for name in names]
                )

    def delete_empty_folder(self) -> None:
        """Delete the folder entry that some stores keep of an empty folder."""
        with suppress(FileNotFoundError), translate_store_errors(self):
            self._get_filesystem().rm(self._get_key(), recursive=True)

    def copy_to(self, other: "StoragePath") -> None:
        """Copy within the same store, on the server if the store can."""
        with translate_store_errors(self):
            self._get_filesystem().cp_file(self._get_key(), other._get_key())

    def _find_info(self) -> dict[str, Any] | None:
        try:
            with translate_store_errors(self):
                found: dict[str, Any] = self._get_filesystem().info(self._get_key())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found

    def _get_filesystem(self) -> Any:
        match = STORAGE_PATH.match(self.text)
        assert match is not None
        with translate_store_errors(self):
            store = open_filesystem(match["store"])
        # other processes write there, too
        store.invalidate_cache()
        return store

    def _get_key(self) -> str:
        return str(type(open_filesystem(self.text.partition(":")[0]))._strip_protocol(self.text))


AnyPath: TypeAlias = Path | StoragePath


def parse_storage_path(text: str) -> AnyPath:
    """Parse a local path or a storage URL. A file:// URL becomes a local path.

    Raises:
        ProblemsFound: If a URL holds credentials.
    """
    if not is_storage_path(text):
        return Path(text)
    if CREDENTIALS.match(text):
        raise problem_error("usage", f"'{text}' is not a valid storage URL", hint=CREDENTIALS_HINT)
    if text.startswith("file:"):
        return Path(text.removeprefix("file:").removeprefix("//"))
    store, _, rest = text.partition(":")
    return StoragePath(
        f"{store}://{rest.strip('/')}" if store != "local" else f"{store}:///{rest.strip('/')}"
    )


def is_storage_path(text: str) -> bool:
    """Return whether a text is a storage URL."""
    return STORAGE_PATH.match(text) is not None


def find_missing_extra(text: str) -> str | None:
    """Return the extra of titanrun that a URL needs and that is missing, None if nothing is."""
    package = STORE_PACKAGES.get(text.partition(":")[0])
    return PACKAGE_EXTRAS[package] if package is not None and find_spec(package) is None else None


def is_known_store(text: str) -> bool:
    """Return whether fsspec, or an installed plug-in of it, supports such a URL."""
    return text.partition(":")[0] in import_module("fsspec").available_protocols()


def get_file_size(file: AnyPath) -> int:
    """Return the size of a file in bytes. Raise OSError if it does not exist."""
    return file.stat().st_size if isinstance(file, Path) else file.get_size()


@contextmanager
def local_copy(file: AnyPath) -> Iterator[Path]:
    """Yield the file as a local path, for libraries that read local files only.

    A copy of an object is deleted after the block.
    """
    if isinstance(file, Path):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="titanrun-") as folder:
        copy = Path(folder) / file.name
        with translate_read_errors(file), file.open("rb") as source, copy.open("wb") as target:
            while block := source.read(COPY_BYTES):
                target.write(block)
        yield copy


def translate_read_errors(file: AnyPath) -> AbstractContextManager[None]:
    """Return a context that raises the errors of reading a stream as OSError."""
    return translate_store_errors(file) if isinstance(file, StoragePath) else nullcontext()


@contextmanager
def translate_store_errors(address: StoragePath) -> Iterator[None]:
    """Raise every error of a store's library as OSError with an errno.

    Raises:
        ProblemsFound: If the library is missing.
    """
    try:
        yield
    except ProblemsFound:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such object", str(address)) from error
    except PermissionError as error:
        raise PermissionError(errno.EACCES, f"the store refuses: {error}", str(address)) from error
    except OSError as error:
        raise OSError(
            error.errno or errno.EIO, error.strerror or str(error), str(address)
        ) from error
    except ImportError as error:
        extra = find_missing_extra(str(address))
        hint = f'pip install "titanrun[{extra}]"' if extra else None
        raise problem_error(
            "usage", f"{address} needs a package that is not installed: {error}", hint=hint
        ) from error
    except Exception as error:  # each store's library has its own exceptions, without a common base
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", str(address)) from error


@cache
def open_filesystem(store: str) -> Any:
    """Return the file system of a store, without a cache of listings."""
    options = {"auto_mkdir": True} if store == "local" else {}
    return import_module("fsspec").filesystem(store, use_listings_cache=False, **options)


def validate_storage_path(text: str) -> str:
    """Return the URL if it has a location and no credentials."""
    if is_storage_path(text) and (
        CREDENTIALS.match(text)
        or ".." in PurePath(text).parts
        or not text.partition(":")[2].strip("/")
    ):
        raise PydanticCustomError(
            "an_address_without_credentials",
            "is not a valid storage URL",
            {"help": CREDENTIALS_HINT},
        )
    return text


def validate_checkpoint_folder(text: str) -> str:
    """Return a folder inside the run directory, or a storage URL."""
    if not is_storage_path(text):
        return validate_run_path(text)
    store, _, rest = validate_storage_path(text).partition(":")
    key = rest.lstrip("/") if store not in ("file", "local") else "/" + rest.lstrip("/")
    return f"{store}://{key}".rstrip("/")


def validate_local_path(text: str) -> str:
    """Return a local path; reject URLs."""
    if is_storage_path(text):
        hint = (
            "its files are locked and appended to, which stores cannot do; "
            "set checkpoint.folder to that URL instead"
        )
        raise PydanticCustomError("a_folder_on_this_machine", "is a storage URL", {"help": hint})
    return validate_line(text)


CheckpointFolder: TypeAlias = Annotated[str, AfterValidator(validate_checkpoint_folder)]
LocalOrStoragePath: TypeAlias = Annotated[str, Len(1), AfterValidator(validate_storage_path)]
LocalPath: TypeAlias = Annotated[str, Len(1), AfterValidator(validate_local_path)]
