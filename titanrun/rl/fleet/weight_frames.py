"""Weights as frames: each tensor in pieces of bounded size."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from titanrun.rl.fleet.frames import MAX_ARRAY_BYTES, FrameError
from titanrun.rl.weight_sync.object_store_transport import PackedTensor

Bucket = list[PackedTensor]


def copy_bucket(bucket: Bucket) -> Bucket:
    """Copy tensors: the trainer changes its own while they are sent."""
    return [(name, shape, dtype_name, data.copy()) for name, shape, dtype_name, data in bucket]


def iter_weight_frames(buckets: Iterable[Bucket]) -> Iterator[tuple[dict[str, Any], memoryview]]:
    """Yield a header and the bytes of each piece."""
    for bucket in buckets:
        for name, shape, dtype_name, data in bucket:
            header = {"do": "weights", "name": name, "shape": shape, "dtype": dtype_name}
            for start in range(0, max(1, data.nbytes), MAX_ARRAY_BYTES):
                piece = memoryview(data[start : start + MAX_ARRAY_BYTES])
                yield {**header, "start": start, "total": data.nbytes}, piece


@dataclass(slots=True)
class WeightAssembly:
    """Tensors that have come in pieces, and the place of the next piece in the last one."""

    _tensors: Bucket = field(default_factory=list)
    _next: int = 0

    def add(self, header: dict[str, Any], piece: bytes) -> None:
        """Add the next piece.

        Raises:
            FrameError: it is not the next one.
        """
        try:
            start, total = header["start"], header["total"]
            if start == 0:
                self._check_last_is_whole()
                memory = np.empty(total, dtype=np.uint8)
                shape = tuple(header["shape"])
                self._tensors.append((header["name"], shape, header["dtype"], memory))
                self._next = 0
            if start != self._next:
                raise FrameError("a piece of the weights is missing")
            memory = self._tensors[-1][3]
            memory[start : start + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        except (KeyError, TypeError, ValueError, IndexError):
            raise FrameError("a piece of the weights has no place") from None
        self._next = start + len(piece)

    def take(self) -> Bucket:
        """Return the tensors, and begin anew.

        Raises:
            FrameError: the last one is not whole.
        """
        self._check_last_is_whole()
        found, self._tensors, self._next = self._tensors, [], 0
        return found

    def _check_last_is_whole(self) -> None:
        memory: npt.NDArray[np.uint8] | None = self._tensors[-1][3] if self._tensors else None
        if memory is not None and self._next != memory.nbytes:
            raise FrameError("a tensor of the weights is not whole")
