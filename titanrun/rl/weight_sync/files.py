"""Weights handed over as files: a folder a version, renamed when it is whole."""

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

from titanrun.distributed.agreement import Ranks
from titanrun.rl.weight_sync.bus import Weights, drop_old

PREFIX = "version-"
UNFINISHED = ".unfinished-"
FILE = "weights.safetensors"


class FolderBus:
    """Folders `version-N`. The first rank writes; every rank reads what it finds.

    Args:
        folder: where they are; other processes may read there.
        keep: how many stay.
        ranks: who publishes together.
        kind: what is in a folder: safetensors, or a distributed checkpoint.
    """

    def __init__(self, folder: Path, *, keep: int, ranks: Ranks, kind: str) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks
        self._write, self._read = KINDS[kind]

    def publish(self, version: int, weights: Weights) -> None:
        """Writes beside the folder and renames it: a reader sees all of it or nothing."""
        # all ranks read to the end, since each holds a part
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        self.ranks.from_first(lambda: self._commit(version, whole))
        drop_old(self, self.keep)

    def versions(self) -> list[int]:
        """Those that are whole."""
        if not self.folder.is_dir():
            return []
        names = [
            path.name.removeprefix(PREFIX)
            for path in self.folder.iterdir()
            if path.name.startswith(PREFIX)
        ]
        return sorted(int(name) for name in names if name.isdecimal())

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Reads tensor by tensor."""
        if version not in self.versions():
            raise KeyError(version)
        yield from self._read(self.folder / f"{PREFIX}{version}")

    def drop(self, version: int) -> None:
        """Takes the name away first: nobody opens a folder that is being removed."""
        if self.ranks.rank == 0:
            self._remove(self.folder / f"{PREFIX}{version}")

    def close(self) -> None:
        """Files stay: others may read them."""

    def _commit(self, version: int, whole: dict[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_over in self.folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left_over)
        made = self.folder / f"{UNFINISHED}{version}"
        made.mkdir()
        self._write(made, whole)
        final = self.folder / f"{PREFIX}{version}"
        if final.exists():
            self._remove(final)
        made.rename(final)

    def _remove(self, path: Path) -> None:
        if path.exists():
            gone = self.folder / f"{UNFINISHED}gone-{path.name}"
            path.rename(gone)
            shutil.rmtree(gone)


def write_safetensors(folder: Path, whole: dict[str, Tensor]) -> None:
    """One file. Tied weights are copied: the format has no aliases."""
    save_file({name: tensor.clone() for name, tensor in whole.items()}, folder / FILE)


def read_safetensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the file."""
    with safe_open(folder / FILE, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (the handle is no mapping)
            yield name, file.get_tensor(name)


@contextmanager
def alone() -> Iterator[None]:
    """One process does it, as it is told to: torch warns all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def write_dcp(folder: Path, whole: dict[str, Tensor]) -> None:
    """A distributed checkpoint that the first rank alone writes."""
    with alone():
        dcp.save(dict(whole), checkpoint_id=folder, no_dist=True)


@torch.no_grad()
def read_dcp(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a distributed checkpoint."""
    reader = dcp.FileSystemReader(folder)
    held = reader.read_metadata().state_dict_metadata
    found: dict[str, Tensor] = {
        name: torch.empty(of.size, dtype=of.properties.dtype) for name, of in held.items()
    }
    with alone():
        dcp.load(found, storage_reader=reader, no_dist=True)
    yield from found.items()


Write = Callable[[Path, dict[str, Tensor]], None]
Read = Callable[[Path], Iterator[tuple[str, Tensor]]]
KINDS: dict[str, tuple[Write, Read]] = {
    "file": (write_safetensors, read_safetensors),
    "dcp": (write_dcp, read_dcp),
}
