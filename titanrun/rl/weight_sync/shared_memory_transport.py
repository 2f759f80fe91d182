"""Weight transport through shared memory that other processes can open."""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.weight_sync.shared_memory_blocks import (
    create_block,
    find_block,
    remove_if_abandoned,
    sweep_abandoned_blocks,
)
from titanrun.rl.weight_sync.transport import Weights, drop_old_versions

log = logging.getLogger(__name__)

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Place of a tensor in a block: its first byte, shape and dtype."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The byte behind the tensor."""
        return self.start + prod(self.shape) * self.dtype.itemsize


class SharedMemoryTransport:
    """A shared memory block and an index file per version.

    The index file names the block and describes its layout. It is renamed into place last.

    Args:
        folder: folder of the index files. A reader opens the same folder.
        keep: number of versions to keep.
        ranks: ranks that publish together. The first rank owns the blocks.
    """

    def __init__(self, folder: Path, *, keep: int, ranks: RankGroup) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks
        # own blocks by version, with the descriptors that lock them
        self._blocks: dict[int, tuple[Path, int]] = {}
        self._has_swept = False

    def publish(self, version: int, weights: Weights) -> None:
        """Copy the weights into a new block. Collective: all ranks must call this.

        The first call removes blocks of processes that died.
        """
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        self.ranks.broadcast_from_main(lambda: self._commit(version, whole))
        drop_old_versions(self, self.keep)

    def list_versions(self) -> list[int]:
        """Return the versions with an index file, ascending."""
        return sorted(
            int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()
        )

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Yield views of the weights in the block. A reader that keeps tensors must copy them.

        Raises:
            KeyError: the version does not exist any more.
            ProblemsFound: the index file does not describe a block.
        """
        path = self._get_index_path(version)
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            places = parse_tensor_places(index)
            block = find_block(index["block"])
            if block is None:
                raise KeyError(version)
            size = block.stat().st_size
            memory = torch.from_file(str(block), shared=True, size=size, dtype=torch.uint8)
        except (OSError, RuntimeError):
            raise KeyError(version) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise build_index_error(path, str(error)) from None
        if any(place.end > size for place in places.values()):
            raise build_index_error(path, "tensors lie outside of the block")
        for name, place in places.items():
            yield name, memory[place.start : place.end].view(place.dtype).reshape(place.shape)

    def drop(self, version: int) -> None:
        """Remove the index file, then the block unless another process owns it.

        Readers that have mapped the block keep its memory until they release it.
        """
        if self.ranks.rank != 0:
            return
        path = self._get_index_path(version)
        named = read_block_name(path)
        path.unlink(missing_ok=True)
        if version in self._blocks:
            block, handle = self._blocks.pop(version)
            block.unlink(missing_ok=True)
            os.close(handle)
        elif (left_over := find_block(named)) is not None:
            remove_if_abandoned(left_over)

    def close(self) -> None:
        """Free all versions."""
        for version in self.list_versions():
            self.drop(version)

    def _get_index_path(self, version: int) -> Path:
        return self.folder / f"{version}.json"

    def _commit(self, version: int, whole: dict[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep_once()
        places, end = {}, 0
        for name, tensor in whole.items():
            places[name] = (end, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        self.drop(version)
        block, handle = create_block()
        self._blocks[version] = block, handle
        size = max(end, 1)
        os.truncate(handle, size)
        memory = torch.from_file(str(block), shared=True, size=size, dtype=torch.uint8)
        for name, tensor in whole.items():
            start, _, _ = places[name]
            memory[start : start + tensor.numel() * tensor.element_size()] = tensor.flatten().view(
                torch.uint8
            )
        unfinished = self.folder / f".unfinished-{version}"
        unfinished.write_text(
            json.dumps({"block": block.name, "tensors": places}), encoding="utf-8"
        )
        unfinished.replace(self._get_index_path(version))

    def _sweep_once(self) -> None:
        if not self._has_swept:
            self._has_swept = True
            left_over = sweep_abandoned_blocks()
            if left_over:
                log.info("removed shared memory of runs that died: %s", ", ".join(left_over))


def read_block_name(path: Path) -> object:
    """Return what an index file names as its block, None if it is missing or malformed."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return index.get("block") if isinstance(index, dict) else None


def parse_tensor_places(index: dict[str, Any]) -> dict[str, TensorPlace]:
    """Return the place of each tensor that an index names.

    Raises:
        ValueError, TypeError or AttributeError: it is not an index.
    """
    if not isinstance(index, dict) or not {"block", "tensors"} <= index.keys():
        raise ValueError("it has no block and tensors")
    places: dict[str, TensorPlace] = {}
    for name, (start, shape, dtype_name) in index["tensors"].items():
        dtype = getattr(torch, dtype_name, None)
        numbers = [start, *shape]
        if not isinstance(dtype, torch.dtype) or any(
            type(number) is not int or number < 0 for number in numbers
        ):
            raise ValueError(f"{name} has no place")
        places[name] = TensorPlace(start, tuple(shape), dtype)
    return places


def build_index_error(path: Path, reason: str) -> Exception:
    """Build the error of an index file that does not describe a block."""
    return problem_error(
        "checkpoint",
        f"{path} does not describe weights in shared memory: {reason}",
        hint="remove it: the next update of the weights writes a new one",
    )
