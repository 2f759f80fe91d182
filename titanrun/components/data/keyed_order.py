"""Permutation of very many samples that is computed where it is read.

Sorting random keys needs 16 bytes a sample and a minute on every rank. A Feistel network with a
round function of integers permutes the numbers below a power of 4, in no memory. Numbers that are
not below the number of samples are permuted again until one is (cycle walking), which makes it a
permutation of the samples.
"""

from typing import overload

import numpy as np
from numpy.typing import NDArray

ROUNDS = 4


class KeyedOrder:
    """Permutation of the numbers below `count`, in the order of the numbers without keys.

    Args:
        count: Number of samples.
        keys: One key of 64 bits for each round, or None.
    """

    def __init__(self, count: int, keys: NDArray[np.uint64] | None) -> None:
        assert 0 < count <= 2**62, "the numbers are halved, and returned as int64"
        self._count, self._keys = count, keys
        self._half_bits = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> np.int64: ...
    @overload
    def __getitem__(self, place: slice) -> NDArray[np.int64]: ...
    def __getitem__(self, place: int | slice) -> np.int64 | NDArray[np.int64]:
        """Return the sample at a place, or those at consecutive places."""
        if isinstance(place, slice):
            return self._permute(np.arange(*place.indices(self._count), dtype=np.uint64))
        first: np.int64 = self[place : place + 1][0]
        return first

    def _permute(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the samples at places."""
        if self._keys is None:
            return numbers.astype(np.int64)
        found = self._run_network(numbers)
        while len(outside := np.flatnonzero(found >= self._count)):
            found[outside] = self._run_network(found[outside])
        return found.astype(np.int64)

    def _run_network(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the numbers below the power of 4, permuted."""
        assert self._keys is not None
        left, right = numbers >> self._half_bits, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix_bits(right ^ key) & self._mask)
        return (left << self._half_bits) | right


def mix_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits that all depend on those of the numbers: the finalizer of splitmix64."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
