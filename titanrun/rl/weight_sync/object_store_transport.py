"""Weight transport through an object store, which moves each version once to each machine."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.weight_sync.transport import Weights, drop_old_versions

# of one object: a machine receives the next while a process reads the last
BUCKET_BYTES = 512 * 1024**2
# name, shape, dtype and bytes of a tensor
PackedTensor = tuple[str, tuple[int, ...], str, Any]


class ObjectStoreTransport:
    """Versions in an object store. Only who is sent their references can read them.

    Args:
        put: puts an object into the store and returns a reference, which keeps it there.
        keep: number of versions to keep.
        ranks: ranks that publish together. The first rank owns the objects.
    """

    def __init__(self, put: Callable[[Any], Any], *, keep: int, ranks: RankGroup) -> None:
        self.put, self.keep, self.ranks = put, keep, ranks
        self._references: dict[int, list[Any]] = {}

    def publish(self, version: int, weights: Weights) -> None:
        """Put the weights into the store. Collective: all ranks must call this."""
        # all ranks consume the iterator: each holds a part of the weights
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        self.ranks.broadcast_from_main(lambda: self._commit(version, whole))
        self._references.setdefault(version, [])
        drop_old_versions(self, self.keep)

    def list_versions(self) -> list[int]:
        """Return the versions that are kept, ascending, on all ranks."""
        return sorted(self._references)

    def find_references(self, version: int) -> Sequence[Any]:
        """Return the references to the objects of a version, none if it does not exist."""
        return self._references.get(version, [])

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Refuse: the trainer's ranks do not generate.

        Raises:
            KeyError: always.
        """
        raise KeyError(version)

    def drop(self, version: int) -> None:
        """Forget the references. The store frees an object when nobody else has one."""
        self._references.pop(version, None)

    def close(self) -> None:
        """Forget all references."""
        self._references.clear()

    def _commit(self, version: int, whole: dict[str, Tensor]) -> None:
        self._references[version] = [self.put(bucket) for bucket in iter_packed_tensors(whole)]


class ObjectStoreReader:
    """The reader's side: the version whose references came last.

    Args:
        get: returns the object of a reference.
    """

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self.get = get
        self._newest: tuple[int, Sequence[Any]] | None = None

    def receive(self, version: int, references: Sequence[Any]) -> None:
        """Take the references of a version instead of those of the last one."""
        self._newest = version, references

    def publish(self, version: int, weights: Weights) -> None:
        """Refuse: a reader has no weights of its own."""
        raise AssertionError("only the trainer publishes")

    def list_versions(self) -> list[int]:
        """Return the version that can be pulled."""
        return [] if self._newest is None else [self._newest[0]]

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Yield copies of the weights, one tensor at a time.

        Raises:
            KeyError: another version has come since.
        """
        if self._newest is None or self._newest[0] != version or not self._newest[1]:
            raise KeyError(version)
        for reference in self._newest[1]:
            bucket: list[PackedTensor] = self.get(reference)
            for name, shape, dtype_name, data in bucket:
                tensor = torch.empty(shape, dtype=getattr(torch, dtype_name))
                # objects of the store are read-only, which tensors cannot be
                get_bytes(tensor)[:] = data
                yield name, tensor

    def drop(self, version: int) -> None:
        """Forget the references of a version."""
        if self._newest is not None and self._newest[0] == version:
            self._newest = None

    def close(self) -> None:
        """Forget all references."""
        self._newest = None


def iter_packed_tensors(whole: dict[str, Tensor]) -> Iterator[list[PackedTensor]]:
    """Yield the tensors in objects of bounded size, at least one tensor each."""
    bucket: list[PackedTensor] = []
    size = 0
    for name, tensor in whole.items():
        data = get_bytes(tensor)
        if bucket and size + data.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        dtype_name = str(tensor.dtype).removeprefix("torch.")
        bucket.append((name, tuple(tensor.shape), dtype_name, data))
        size += data.nbytes
    if bucket:
        yield bucket


def get_bytes(tensor: Tensor) -> Any:
    """Return the memory of a contiguous tensor as a NumPy array of bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
