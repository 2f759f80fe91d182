"""Tensors on disk in the format of torch.distributed.checkpoint.

Importing it takes a second, so nothing imports this module at startup.
"""

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

from titanrun.components.checkpoints.spec.hashed_file import FileEntry, HashedFile
from titanrun.components.checkpoints.spec.storage_path import (
    AnyPath,
    StoragePath,
    translate_read_errors,
)
from titanrun.components.checkpoints.spec.verification import INDEX_FILE, UNPICKLING_ERRORS
from titanrun.components.checkpoints.tensor_metadata import TensorMetadata
from titanrun.config.problems import problem_error
from titanrun.distributed.object_collectives import RankGroup


def get_memory_format(encoding: Any, name: str) -> Any:
    """Return a member of torch's enumeration of memory formats, and nothing else.

    It stands for the lookup by name in a pickle.
    """
    if encoding is not dcp_metadata._MEM_FORMAT_ENCODING or name not in encoding.__members__:
        raise pickle.UnpicklingError(f"it looks up {name}, which an index does not need")
    return encoding[name]


# All globals that the index of plain and sharded tensors needs. The index is a pickle, and a pickle
# may name any function to be called.
INDEX_CLASSES: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    # encoding of enumeration members in Python 3.11.0 to 3.11.3
    ("builtins", "getattr"): get_memory_format,
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


class IndexUnpickler(pickle.Unpickler):
    """Unpickler of a checkpoint index that rejects all other globals."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of that name, from the list above or torch's dtypes."""
        if (module, name) in INDEX_CLASSES:
            return INDEX_CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which an index does not need")


class DcpReader(checkpoint.FileSystemReader):
    """torch's reader of a folder, with a safe reader of the index."""

    def __init__(self, folder: AnyPath) -> None:
        super().__init__(".")
        self.path: Any = folder
        if isinstance(folder, StoragePath):
            self.fs = HashingObjectStore()

    def read_metadata(self, *_: Any, **__: Any) -> dcp_metadata.Metadata:
        """Return the index of the folder."""
        return read_dcp_index(self.path)


class DcpWriter(checkpoint.FileSystemWriter):
    """torch's writer of a folder, local or in object storage."""

    def __init__(self, folder: AnyPath) -> None:
        super().__init__(".", sync_files=False)
        self.path: Any = folder
        self.fs: HashingFileSystem = (
            HashingFileSystem() if isinstance(folder, Path) else HashingObjectStore()
        )

    def storage_meta(self) -> dcp_metadata.StorageMeta:
        """Return the metadata of the storage in the index: its name."""
        return dcp_metadata.StorageMeta(checkpoint_id=str(self.path), save_id=self.save_id)


class HashingFileSystem(filesystem.FileSystem):
    """torch's file operations, with a digest of each new file.

    A file is on disk when it is closed.
    """

    def __init__(self) -> None:
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """Open a stream of a file, our own for writing."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        file = HashedFile(path)
        try:
            yield file
            file.close()
            self.entries[path.name] = file.entry
        except RuntimeError as error:
            # torch's archive writer raises an error about positions if the disk is full
            raise file.write_error or error from error
        finally:
            file.discard()

    def rename(self, path: Any, new_path: Any) -> None:
        """Rename a file and the key of its digest."""
        super().rename(path, new_path)
        with suppress(KeyError):
            self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)


class HashingObjectStore(HashingFileSystem):
    """torch's file operations on object storage.

    Nothing is renamed there, and a folder without a manifest is not a checkpoint.
    """

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """Open a stream of an object."""
        if mode == "wb":
            with super().create_stream(get_final_path(path), mode) as stream:
                yield stream
        else:
            with translate_read_errors(path), path.open(mode) as stream:
                yield stream

    def concat_path(self, path: Any, suffix: str) -> Any:
        """Return the path of `suffix` below `path`."""
        return path / suffix

    def mkdir(self, path: Any) -> None:
        """Do nothing: objects need no folders."""

    def exists(self, path: Any) -> bool:
        """Return False: torch would delete an existing folder."""
        return False

    def rename(self, path: Any, new_path: Any) -> None:
        """Do nothing: the object was written under its new name."""


def get_final_path(path: StoragePath) -> StoragePath:
    """Return the name that torch gives a file after writing it."""
    return path.with_name(path.name.removesuffix(".tmp"))


def write_tensors(
    folder: AnyPath, tensors: Mapping[str, Tensor], ranks: RankGroup
) -> dict[str, FileEntry]:
    """Write `tensors` into `folder`, each rank its shards; return this rank's files.

    Collective over `ranks`. The files are on disk when this returns.
    """
    writer = DcpWriter(folder)
    with _unwrap_checkpoint_errors(), _disable_crc32():
        checkpoint.save(
            dict(tensors),
            storage_writer=writer,
            process_group=ranks.group,
            no_dist=ranks.size == 1,
        )
    return writer.fs.entries


def read_tensors(
    folder: AnyPath, into: Mapping[str, Tensor], ranks: RankGroup | None = None
) -> None:
    """Fill the tensors of `into` in place with those of the same name in `folder`.

    Args:
        folder: Folder that `write_tensors` wrote.
        into: Tensors, of which each rank fills its shards.
        ranks: Ranks that read together. None reads without other ranks.

    Raises:
        ProblemsFound: A problem `checkpoint` if reading fails.
    """
    group, alone = (ranks.group, ranks.size == 1) if ranks is not None else (None, True)
    try:
        with _unwrap_checkpoint_errors():
            checkpoint.load(
                dict(into), storage_reader=DcpReader(folder), process_group=group, no_dist=alone
            )
    except (OSError, RuntimeError, AssertionError, *UNPICKLING_ERRORS) as error:
        raise problem_error(
            "checkpoint", f"cannot read the tensors in {folder}: {_get_first_line(error)}"
        ) from error


def read_tensor_metadata(
    folder: AnyPath, *, allows_other_objects: bool = False
) -> dict[str, TensorMetadata]:
    """Return shape and dtype of every tensor in `folder`, by name.

    Args:
        folder: Folder of the tensors.
        allows_other_objects: Whether the folder may also hold pickled objects, which are never
            read.

    Raises:
        ProblemsFound: A problem `checkpoint` if its index cannot be read.
    """
    entries = read_dcp_index(folder).state_dict_metadata
    tensors = {
        name: entry
        for name, entry in entries.items()
        if isinstance(entry, dcp_metadata.TensorStorageMetadata)
    }
    others = [name for name in entries if name not in tensors]
    if others and not allows_other_objects:
        raise problem_error(
            "checkpoint", f"{folder} holds objects that are not tensors: {', '.join(others[:3])}"
        )
    return {
        name: TensorMetadata(tuple(entry.size), entry.properties.dtype)
        for name, entry in tensors.items()
    }


def read_dcp_index(folder: AnyPath) -> dcp_metadata.Metadata:
    """Return names, shapes, dtypes and locations of the tensors in `folder`.

    Raises:
        ProblemsFound: A problem `checkpoint` if the index cannot be read.
    """
    path = folder / INDEX_FILE
    try:
        with path.open("rb") as file:
            index = IndexUnpickler(file).load()
    except OSError as error:
        raise problem_error("checkpoint", f"cannot read {path}: {error.strerror}") from error
    except UNPICKLING_ERRORS as error:
        raise problem_error("checkpoint", f"{path} is damaged: {_get_first_line(error)}") from error
    if not isinstance(index, dcp_metadata.Metadata) or not isinstance(index.storage_data, dict):
        raise problem_error("checkpoint", f"{path} is damaged: it is not an index of tensors")
    for place in index.storage_data.values():
        name = getattr(place, "relative_path", None)
        if not isinstance(name, str) or Path(name).name != name:
            raise problem_error(
                "checkpoint",
                f"{path} is damaged: it names the file {name!r}, which is not in that folder",
            )
    return index


@contextmanager
def _unwrap_checkpoint_errors() -> Iterator[None]:
    """Silence torch's warning about a single process and raise the errors that it wraps.

    Wrapped errors include KeyboardInterrupt.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as wrapper:
        cause, _ = next(iter(wrapper.failures.values()))
        raise cause from None


@contextmanager
def _disable_crc32() -> Iterator[None]:
    """Disable torch's CRC-32 of every byte.

    It takes as long as the copying, and each file has a digest.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _get_first_line(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "a file ends too early"
    return (str(error).splitlines() or [type(error).__name__])[0]
