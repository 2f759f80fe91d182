"""Places of checkpoints: folders on this machine, and addresses in stores such as s3://bucket/run, with the same few operations.

A store is reached through fsspec, which is imported when an address is used; who may use it, the environment says (the store's own
variables and files). No torch here.
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

from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.types import inside_run_directory

# one slash: PurePath, which a folder's name may have gone through, keeps no two
ADDRESS = re.compile(r"(?P<store>[A-Za-z][A-Za-z0-9+.-]+):/")
CREDENTIALS = re.compile(r"[^/]*://[^/]*@|.*[?#]")
# what each store needs beside fsspec, and the extra of titanrun that brings it
PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}
EXTRAS = {"s3fs": "s3", "gcsfs": "gcs", "adlfs": "azure"}
WITHOUT_CREDENTIALS = (
    "write the bucket and the path only; the store's own environment variables say who you are"
)
COPY_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A folder or a file in a store, used as a Path is. Everything that the store raises becomes an OSError with a number."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> "Address":
        return Address(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> "Address":
        """What it lies in."""
        return Address(self.text.rpartition("/")[0])

    def with_name(self, name: str) -> "Address":
        """Beside it, under another name."""
        return self.parent / name

    def exists(self) -> bool:
        """Whether there is an object, or a folder with one in it."""
        return self._information() is not None

    def is_file(self) -> bool:
        """Whether it is an object."""
        found = self._information()
        return found is not None and found["type"] == "file"

    def is_dir(self) -> bool:
        """Whether objects lie below it."""
        found = self._information()
        return found is not None and found["type"] == "directory"

    def size(self) -> int:
        """Bytes of the object."""
        found = self._information()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.text)
        return int(found["size"])

    def iterdir(self) -> Iterator["Address"]:
        """What lies directly in it."""
        with store_errors(self):
            found = self._store().ls(self._key(), detail=False)
        names = [
            str(key).rstrip("/").rpartition("/")[2]
            for key in found
            if str(key).strip("/") != self._key().strip("/")
        ]
        return (self / name for name in sorted(names))

    def files(self) -> list["Address"]:
        """All objects below it."""
        with store_errors(self):
            found = self._store().find(self._key())
        start = len(self._key().strip("/")) + 1
        return [self / str(key).strip("/")[start:] for key in sorted(found)]

    def open(self, mode: str = "rb", **_: object) -> IO[bytes]:
        """The object as a stream; what is written is there when it is closed."""
        with store_errors(self):
            stream: IO[bytes] = self._store().open(self._key(), mode.replace("x", "w"))
        return stream

    def read_bytes(self) -> bytes:
        """The object."""
        with store_errors(self):
            return bytes(self._store().cat_file(self._key()))

    def read_text(self, encoding: str = "utf-8") -> str:
        """The object as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> None:
        """A new object of these bytes."""
        with store_errors(self):
            self._store().pipe_file(self._key(), content)

    def unlink(self) -> None:
        """Deletes the object."""
        with store_errors(self):
            self._store().rm_file(self._key())

    def delete(self, names: Sequence[str]) -> None:
        """Deletes these objects in it, in one go where the store can."""
        if names:
            with store_errors(self):
                self._store().rm([f"{self._key().rstrip('/')}/{name}" for name in names])

    def delete_empty(self) -> None:
        """Deletes what a store with folders of its own keeps of one that holds nothing any more."""
        with suppress(FileNotFoundError), store_errors(self):
            self._store().rm(self._key(), recursive=True)

    def copy_to(self, other: "Address") -> None:
        """A copy in the same store, which the store makes by itself where it can."""
        with store_errors(self):
            self._store().cp_file(self._key(), other._key())

    def _information(self) -> dict[str, Any] | None:
        try:
            with store_errors(self):
                found: dict[str, Any] = self._store().info(self._key())
        except FileNotFoundError:
            return None
        return found

    def _store(self) -> Any:
        match = ADDRESS.match(self.text)
        assert match is not None
        with store_errors(self):
            store = opened(match["store"])
        # others write there too
        store.invalidate_cache()
        return store

    def _key(self) -> str:
        return str(type(opened(self.text.partition(":")[0]))._strip_protocol(self.text))


Place: TypeAlias = Path | Address


def place(text: str) -> Place:
    """The folder or the address that is named. A file:// address is a folder. Raises a problem where an address says who asks."""
    if not is_address(text):
        return Path(text)
    if CREDENTIALS.match(text):
        raise fail("usage", f"'{text}' is an address that cannot be used", help=WITHOUT_CREDENTIALS)
    if text.startswith("file:"):
        return Path(text.removeprefix("file:").removeprefix("//"))
    store, _, rest = text.partition(":")
    return Address(
        f"{store}://{rest.strip('/')}" if store != "local" else f"{store}:///{rest.strip('/')}"
    )


def is_address(text: str) -> bool:
    """Whether a text names a place outside the run directory by an address."""
    return ADDRESS.match(text) is not None


def missing_package(text: str) -> str | None:
    """The extra of titanrun that an address needs and that is not installed; None where nothing is missing."""
    package = PACKAGES.get(text.partition(":")[0])
    return EXTRAS[package] if package is not None and find_spec(package) is None else None


def is_known_store(text: str) -> bool:
    """Whether fsspec, or an installed plug-in of it, knows how such an address is read."""
    return text.partition(":")[0] in import_module("fsspec").available_protocols()


def size_of(file: Place) -> int:
    """Bytes of a file. Raises OSError where there is none."""
    return file.stat().st_size if isinstance(file, Path) else file.size()


@contextmanager
def local_copy(file: Place) -> Iterator[Path]:
    """The file on this machine, for libraries that read files only; a copy of an object is gone after the block."""
    if isinstance(file, Path):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="titanrun-") as folder:
        copy = Path(folder) / file.name
        with reading(file), file.open("rb") as source, copy.open("wb") as target:
            while block := source.read(COPY_BYTES):
                target.write(block)
        yield copy


def reading(file: Place) -> AbstractContextManager[None]:
    """Around the reading of a stream: what goes wrong with it is an OSError."""
    return store_errors(file) if isinstance(file, Address) else nullcontext()


@contextmanager
def store_errors(address: Address) -> Iterator[None]:
    """Turns whatever a store's library raises into an OSError that says how bad it is. Raises a problem where the library is missing."""
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
        extra = missing_package(str(address))
        help = f'pip install "titanrun[{extra}]"' if extra else None
        raise fail(
            "usage", f"{address} needs a package that is not installed: {error}", help=help
        ) from error
    except (
        Exception
    ) as error:  # each store's library has exceptions of its own, with nothing in common
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", str(address)) from error


@cache
def opened(store: str) -> Any:
    """The file system of a store, without a memory of what it listed before."""
    options = {"auto_mkdir": True} if store == "local" else {}
    return import_module("fsspec").filesystem(store, use_listings_cache=False, **options)


def without_credentials(text: str) -> str:
    """An address that says where, and not who."""
    if is_address(text) and (
        CREDENTIALS.match(text)
        or ".." in PurePath(text).parts
        or not text.partition(":")[2].strip("/")
    ):
        raise PydanticCustomError(
            "an_address_without_credentials",
            "is an address that cannot be used",
            {"help": WITHOUT_CREDENTIALS},
        )
    return text


def in_run_directory_or_store(text: str) -> str:
    """A folder inside the run directory, or an address."""
    if not is_address(text):
        return inside_run_directory(text)
    store, _, rest = without_credentials(text).partition(":")
    return f"{store}://{rest.lstrip('/') if store not in ('file', 'local') else '/' + rest.lstrip('/')}".rstrip(
        "/"
    )


def on_this_machine(text: str) -> str:
    """A path, and no address."""
    if is_address(text):
        help = "its files are locked and appended to, which stores cannot do; set checkpoint.folder to that address instead"
        raise PydanticCustomError("a_folder_on_this_machine", "is an address", {"help": help})
    return text


CheckpointFolder: TypeAlias = Annotated[str, AfterValidator(in_run_directory_or_store)]
PathOrAddress: TypeAlias = Annotated[str, Len(1), AfterValidator(without_credentials)]
LocalPath: TypeAlias = Annotated[str, Len(1), AfterValidator(on_this_machine)]
