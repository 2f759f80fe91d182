"""Weights handed over through memory that other processes can open."""

import json
import os
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from titanrun.distributed.agreement import Ranks
from titanrun.rl.weight_sync.bus import Weights, drop_old

ALIGNMENT = 64
# files here are memory, not disk
MEMORY = Path("/dev/shm")


class SharedMemoryBus:
    """A block of shared memory a version, and a small file that says what is where in it, which gets its name last.

    Args:
        folder: of the files. A reader opens the same folder.
        keep: how many versions stay.
        ranks: who publishes together: the first rank has the blocks.
    """

    def __init__(self, folder: Path, *, keep: int, ranks: Ranks) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks

    def publish(self, version: int, weights: Weights) -> None:
        """Copies the weights into a new block."""
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        self.ranks.from_first(lambda: self._commit(version, whole))
        drop_old(self, self.keep)

    def versions(self) -> list[int]:
        """Those that have a file."""
        return sorted(
            int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()
        )

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights as they lie in the block, no copies: a reader that keeps some must copy them."""
        try:
            index = json.loads(self._index(version).read_text(encoding="utf-8"))
            block = torch.from_file(
                index["block"], shared=True, size=index["bytes"], dtype=torch.uint8
            )
        except (FileNotFoundError, RuntimeError):
            raise KeyError(version) from None
        for name, (start, shape, dtype) in index["tensors"].items():
            kind: torch.dtype = getattr(torch, dtype)
            yield name, block[start : start + prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def drop(self, version: int) -> None:
        """The file first: nobody looks for the block any more. Who reads it keeps the memory until then."""
        if self.ranks.rank == 0 and (path := self._index(version)).exists():
            block = Path(json.loads(path.read_text(encoding="utf-8"))["block"])
            path.unlink()
            block.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the memory back."""
        for version in self.versions():
            self.drop(version)

    def _index(self, version: int) -> Path:
        return self.folder / f"{version}.json"

    def _commit(self, version: int, whole: dict[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        places, end = {}, 0
        for name, tensor in whole.items():
            places[name] = (end, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        self.drop(version)
        handle, block = tempfile.mkstemp(
            prefix=f"titanrun-weights-{os.getpid()}-", dir=MEMORY if MEMORY.is_dir() else None
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
        unfinished.replace(self._index(version))
