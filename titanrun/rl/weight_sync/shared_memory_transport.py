"""Weight transport through shared memory that other processes can open."""

import json
import os
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.weight_sync.transport import Weights, drop_old_versions

ALIGNMENT = 64
# file system in memory
SHARED_MEMORY_FOLDER = Path("/dev/shm")


class SharedMemoryTransport:
    """A shared memory block and an index file per version.

    The index file describes the layout of the block and is renamed into place last.

    Args:
        folder: folder of the index files. A reader opens the same folder.
        keep: number of versions to keep.
        ranks: ranks that publish together. The first rank owns the blocks.
    """

    def __init__(self, folder: Path, *, keep: int, ranks: RankGroup) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks

    def publish(self, version: int, weights: Weights) -> None:
        """Copy the weights into a new block. Collective: all ranks must call this."""
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        self.ranks.broadcast_from_main(lambda: self._commit(version, whole))
        drop_old_versions(self, self.keep)

    def list_versions(self) -> list[int]:
        """Return the versions with an index file, ascending."""
        return sorted(
            int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()
        )

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Yield views of the weights in the block. A reader that keeps tensors must copy them."""
        try:
            index = json.loads(self._get_index_path(version).read_text(encoding="utf-8"))
            block = torch.from_file(
                index["block"], shared=True, size=index["bytes"], dtype=torch.uint8
            )
        except (FileNotFoundError, RuntimeError):
            raise KeyError(version) from None
        for name, (start, shape, dtype) in index["tensors"].items():
            kind: torch.dtype = getattr(torch, dtype)
            yield name, block[start : start + prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def drop(self, version: int) -> None:
        """Remove the index file, then the block.

        Readers that have mapped the block keep its memory until they release it.
        """
        if self.ranks.rank == 0 and (path := self._get_index_path(version)).exists():
            block = Path(json.loads(path.read_text(encoding="utf-8"))["block"])
            path.unlink()
            block.unlink(missing_ok=True)

    def close(self) -> None:
        """Free all versions."""
        for version in self.list_versions():
            self.drop(version)

    def _get_index_path(self, version: int) -> Path:
        return self.folder / f"{version}.json"

    def _commit(self, version: int, whole: dict[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        places, end = {}, 0
        for name, tensor in whole.items():
            places[name] = (end, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        self.drop(version)
        handle, block = tempfile.mkstemp(
            prefix=f"titanrun-weights-{os.getpid()}-",
            dir=SHARED_MEMORY_FOLDER if SHARED_MEMORY_FOLDER.is_dir() else None,
        )
        os.close(handle)
        os.truncate(block, max(end, 1))
        memory = torch.from_file(block, shared=True, size=max(end, 1), dtype=torch.uint8)
        for name, tensor in whole.items():
            start, _, _ = places[name]
            memory[start : start + tensor.numel() * tensor.element_size()] = tensor.flatten().view(
                torch.uint8
            )
        unfinished = self.folder / f".unfinished-{version}"
        unfinished.write_text(
            json.dumps({"block": block, "bytes": max(end, 1), "tensors": places}), encoding="utf-8"
        )
        unfinished.replace(self._get_index_path(version))
