"""Weight transport through files: one atomically renamed folder per version."""

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.weight_sync.transport import Weights, drop_old_versions

VERSION_PREFIX = "version-"
UNFINISHED_PREFIX = ".unfinished-"
WEIGHTS_FILE = "weights.safetensors"


class FolderTransport:
    """Folders `version-N`. The first rank writes, all ranks read.

    Args:
        folder: parent folder, which other processes may read.
        keep: number of versions to keep.
        ranks: ranks that publish together.
        kind: file format, safetensors (`file`) or a distributed checkpoint (`dcp`).
    """

    def __init__(self, folder: Path, *, keep: int, ranks: RankGroup, kind: str) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks
        self._write, self._read = FORMATS[kind]

    def publish(self, version: int, weights: Weights) -> None:
        """Write into a temporary folder and rename it, so that readers see all of it or nothing.

        Collective: all ranks must call this.
        """
        # all ranks consume the iterator: each holds a part of the weights
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        self.ranks.broadcast_from_main(lambda: self._commit(version, whole))
        drop_old_versions(self, self.keep)

    def list_versions(self) -> list[int]:
        """Return the complete versions, ascending."""
        if not self.folder.is_dir():
            return []
        names = [
            path.name.removeprefix(VERSION_PREFIX)
            for path in self.folder.iterdir()
            if path.name.startswith(VERSION_PREFIX)
        ]
        return sorted(int(name) for name in names if name.isdecimal())

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights, one tensor at a time."""
        if version not in self.list_versions():
            raise KeyError(version)
        yield from self._read(self.folder / f"{VERSION_PREFIX}{version}")

    def drop(self, version: int) -> None:
        """Rename the folder, then remove it: no reader opens a folder that is being removed."""
        if self.ranks.rank == 0:
            self._remove(self.folder / f"{VERSION_PREFIX}{version}")

    def close(self) -> None:
        """Do nothing: files stay for other readers."""

    def _commit(self, version: int, whole: dict[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_over in self.folder.glob(f"{UNFINISHED_PREFIX}*"):
            shutil.rmtree(left_over)
        made = self.folder / f"{UNFINISHED_PREFIX}{version}"
        made.mkdir()
        self._write(made, whole)
        final = self.folder / f"{VERSION_PREFIX}{version}"
        if final.exists():
            self._remove(final)
        made.rename(final)

    def _remove(self, path: Path) -> None:
        if path.exists():
            gone = self.folder / f"{UNFINISHED_PREFIX}gone-{path.name}"
            path.rename(gone)
            shutil.rmtree(gone)


def write_safetensors(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write one file. Tied weights are copied, because the format has no aliases."""
    save_file({name: tensor.clone() for name, tensor in weights.items()}, folder / WEIGHTS_FILE)


def read_safetensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the file."""
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            yield name, file.get_tensor(name)


@contextmanager
def suppress_no_dist_warning() -> Iterator[None]:
    """Suppress torch's warning about a save or load by one process, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def write_dcp(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write a distributed checkpoint on the first rank only."""
    with suppress_no_dist_warning():
        dcp.save(dict(weights), checkpoint_id=folder, no_dist=True)


@torch.no_grad()
def read_dcp(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a distributed checkpoint."""
    reader = dcp.FileSystemReader(folder)
    held = reader.read_metadata().state_dict_metadata
    found: dict[str, Tensor] = {}
    for name, metadata in held.items():
        assert isinstance(metadata, TensorStorageMetadata), "weights are tensors"
        found[name] = torch.empty(metadata.size, dtype=metadata.properties.dtype)
    with suppress_no_dist_warning():
        dcp.load(found, storage_reader=reader, no_dist=True)
    yield from found.items()


WriteWeightsFn = Callable[[Path, dict[str, Tensor]], None]
ReadWeightsFn = Callable[[Path], Iterator[tuple[str, Tensor]]]
FORMATS: dict[str, tuple[WriteWeightsFn, ReadWeightsFn]] = {
    "file": (write_safetensors, read_safetensors),
    "dcp": (write_dcp, read_dcp),
}
