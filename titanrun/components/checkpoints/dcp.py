"""Tensors on disk in the format of torch.distributed.checkpoint; importing that takes a second, so nothing imports this at start-up."""

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException

from titanrun.components.checkpoints.addresses import Address, Place, reading
from titanrun.components.checkpoints.digested_file import DigestedFile, FileEntry
from titanrun.components.checkpoints.layout import Layout
from titanrun.config.problems import fail
from titanrun.distributed.agreement import Ranks

INDEX_FILE = ".metadata"


def memory_format(encoding: Any, name: str) -> Any:
    """What a pickle may look up by name: a member of torch's enumeration of memory formats, and nothing else."""
    if encoding is not dcp_metadata._MEM_FORMAT_ENCODING or name not in encoding.__members__:
        raise pickle.UnpicklingError(f"it looks up {name}, which no index needs")
    return encoding[name]


# All that the index of plain and sharded tensors is made of. It is a pickle, and a pickle may name any function to be called.
INDEX_CLASSES: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    # how Python 3.11.0 to 3.11.3 write an enumeration's member
    ("builtins", "getattr"): memory_format,
    **{("pathlib" + module, "PosixPath"): PurePosixPath for module in ("", "._local")},
    **{
        ("torch.distributed.checkpoint.metadata", name): getattr(dcp_metadata, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
}

# what unpickling damaged bytes may raise
DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    MemoryError,
)


class IndexUnpickler(pickle.Unpickler):
    """Reads the index of a checkpoint, and refuses a pickle that names anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of that name, out of the list above and torch's types."""
        if (module, name) in INDEX_CLASSES:
            return INDEX_CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no index needs")


class IndexedReader(checkpoint.FileSystemReader):
    """torch's reader of a folder, with the index read by us."""

    def __init__(self, folder: Place) -> None:
        super().__init__(".")
        self.path: Any = folder
        if isinstance(folder, Address):
            self.fs = DigestingStore()

    def read_metadata(self, *_: Any, **__: Any) -> dcp_metadata.Metadata:
        """The index of the folder."""
        return read_index(self.path)


class Writer(checkpoint.FileSystemWriter):
    """torch's writer of a folder, or of an address."""

    def __init__(self, folder: Place) -> None:
        super().__init__(".", sync_files=False)
        self.path: Any = folder
        self.fs: DigestingFileSystem = (
            DigestingFileSystem() if isinstance(folder, Path) else DigestingStore()
        )

    def storage_meta(self) -> dcp_metadata.StorageMeta:
        """What the index keeps of the place: its name."""
        return dcp_metadata.StorageMeta(checkpoint_id=str(self.path), save_id=self.save_id)


class DigestingFileSystem(filesystem.FileSystem):
    """torch's file operations, with a digest of each new file, which is on disk when it is closed."""

    def __init__(self) -> None:
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """A stream of a file: our own where it writes."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        file = DigestedFile(path)
        try:
            yield file
            file.close()
            self.entries[path.name] = file.entry
        except RuntimeError as error:
            # torch's archive writer says something about positions where the disk is full
            raise file.failure or error from error
        finally:
            file.discard()

    def rename(self, path: Any, new_path: Any) -> None:
        """Renames a file; its digest goes with it."""
        super().rename(path, new_path)
        with suppress(KeyError):
            self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)


class DigestingStore(DigestingFileSystem):
    """The same in a store: nothing is renamed there, and what a folder without a manifest holds is nobody's."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """A stream of an object."""
        if mode == "wb":
            with super().create_stream(final_name(path), mode) as stream:
                yield stream
        else:
            with reading(path), path.open(mode) as stream:
                yield stream

    def concat_path(self, path: Any, suffix: str) -> Any:
        """A name below."""
        return path / suffix

    def mkdir(self, path: Any) -> None:
        """Folders are where objects are."""

    def exists(self, path: Any) -> bool:
        """Never: torch would delete it."""
        return False

    def rename(self, path: Any, new_path: Any) -> None:
        """It was written under its new name."""


def final_name(path: Address) -> Address:
    """The name that torch gives a file after it has written it."""
    return path.with_name(path.name.removesuffix(".tmp"))


def write_tensors(
    folder: Place, tensors: Mapping[str, Tensor], ranks: Ranks
) -> dict[str, FileEntry]:
    """Write `tensors` into `folder`, each rank its part. Gives the files that this rank wrote, which are on disk then."""
    writer = Writer(folder)
    with _plain_errors(), _without_crc32():
        checkpoint.save(
            dict(tensors),
            storage_writer=writer,
            process_group=ranks.group,
            no_dist=ranks.count == 1,
        )
    return writer.fs.entries


def read_tensors(folder: Place, into: Mapping[str, Tensor], ranks: Ranks | None = None) -> None:
    """Fill the tensors of `into` in place with those of the same name in `folder`. Raises a problem `checkpoint` where that fails.

    Args:
        folder: where `write_tensors` wrote.
        into: the tensors, of which each rank fills its part.
        ranks: who reads together; None reads alone.
    """
    group, alone = (ranks.group, ranks.count == 1) if ranks is not None else (None, True)
    try:
        with _plain_errors():
            checkpoint.load(
                dict(into), storage_reader=IndexedReader(folder), process_group=group, no_dist=alone
            )
    except (OSError, RuntimeError, AssertionError, *DAMAGE) as error:
        raise fail(
            "checkpoint", f"cannot read the tensors in {folder}: {_first_line(error)}"
        ) from error


def read_layouts(folder: Place, *, others_allowed: bool = False) -> dict[str, Layout]:
    """Shape and type of every tensor in `folder`, by name. Raises a problem `checkpoint` where its index cannot be read.

    Args:
        folder: where they lie.
        others_allowed: whether pickled objects may lie beside them, which are never read.
    """
    entries = read_index(folder).state_dict_metadata
    if others_allowed:
        entries = {
            name: entry
            for name, entry in entries.items()
            if isinstance(entry, dcp_metadata.TensorStorageMetadata)
        }
    strangers = [
        name
        for name, entry in entries.items()
        if not isinstance(entry, dcp_metadata.TensorStorageMetadata)
    ]
    if strangers:
        raise fail(
            "checkpoint", f"{folder} holds objects that are no tensors: {', '.join(strangers[:3])}"
        )
    return {
        name: Layout(tuple(entry.size), entry.properties.dtype) for name, entry in entries.items()
    }


def read_index(folder: Place) -> dcp_metadata.Metadata:
    """Names, shapes, types and places of the tensors in `folder`. Raises a problem `checkpoint` where it cannot be read."""
    path = folder / INDEX_FILE
    try:
        with path.open("rb") as file:
            index = IndexUnpickler(file).load()
    except OSError as error:
        raise fail("checkpoint", f"cannot read {path}: {error.strerror}") from error
    except DAMAGE as error:
        raise fail("checkpoint", f"{path} is damaged: {_first_line(error)}") from error
    if not isinstance(index, dcp_metadata.Metadata) or not isinstance(index.storage_data, dict):
        raise fail("checkpoint", f"{path} is damaged: it is no index of tensors")
    for place in index.storage_data.values():
        name = getattr(place, "relative_path", None)
        if not isinstance(name, str) or Path(name).name != name:
            raise fail(
                "checkpoint",
                f"{path} is damaged: it names the file {name!r}, which is not in that folder",
            )
    return index


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Quiet torch's remark that one process works alone, and raise what it wraps (a KeyboardInterrupt too) as it was."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as wrapper:
        cause, _ = next(iter(wrapper.failures.values()))
        raise cause from None


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Keep torch from summing up every byte a second time: it takes as long as the copying, and each file has its digest."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _first_line(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "a file ends too early"
    return (str(error).splitlines() or [type(error).__name__])[0]
