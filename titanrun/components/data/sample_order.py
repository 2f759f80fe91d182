"""Order in which the samples of a dataset are read, epoch after epoch."""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.document_pieces import DocumentPiece, locate_pieces
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.keyed_order import ROUNDS, KeyedOrder

MAX_SORTED = 2**27
"""Samples up to which the order is sorted random keys. It is a promise: the order of more samples
is computed where it is read."""
SampleOrder = NDArray[np.integer] | KeyedOrder
"""Permutation of samples, to index with a place or consecutive places."""


@runtime_checkable
class OrderedDataset(Protocol):
    """Dataset that decides itself which of its samples an epoch reads, such as a mixture.

    `epoch_size` is the number of samples of an epoch. `total_size` is the number of samples of all
    epochs, after which the data ends even if it repeats, or None.
    """

    epoch_size: int
    total_size: int | None

    def compute_epoch_order(self, epoch: int, *, seed: int | None) -> NDArray[np.integer]:
        """Return the indices of the samples of an epoch, in given order without a seed."""
        ...


def get_epoch_size(dataset: Any) -> int:
    """Return the number of samples that one epoch of a dataset reads."""
    return dataset.epoch_size if isinstance(dataset, OrderedDataset) else len(dataset)


def get_total_size(dataset: Any) -> int | None:
    """Return the number of samples after which a dataset that repeats ends, or None."""
    return dataset.total_size if isinstance(dataset, OrderedDataset) else None


def compute_epoch_order(dataset: Any, epoch: int, *, seed: int | None) -> SampleOrder:
    """Return the indices of the samples of an epoch in the order in which they are read.

    Without a seed, they are in the order of the dataset.
    """
    if isinstance(dataset, OrderedDataset):
        return dataset.compute_epoch_order(epoch, seed=seed)
    return shuffle_order(len(dataset), seed=seed, epoch=epoch)


def shuffle_order(
    count: int, *, seed: int | None, epoch: int, key: tuple[int, ...] = ()
) -> SampleOrder:
    """Return a permutation of `count` samples that depends on seed, epoch and key.

    Without a seed, it is the identity. Random numbers are those of PCG64: numpy guarantees that its
    raw numbers never change, which it does not for its shuffle.
    """
    is_sorted = count <= MAX_SORTED
    if seed is None:
        return np.arange(count, dtype=np.uint32) if is_sorted else KeyedOrder(count, None)
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, *key))
    keys = np.random.PCG64(sequence).random_raw(count if is_sorted else ROUNDS)
    if not is_sorted:
        return KeyedOrder(count, keys)
    # stable: other kinds order equal keys differently on different CPUs
    return np.argsort(keys, kind="stable").astype(np.uint32)


class FirstEpochView:
    """Samples of the first epoch of an ordered dataset, in the order of the dataset.

    For what reads data once: validation, evaluation and inspection.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.indices = compute_epoch_order(dataset, 0, seed=None)
        self.fingerprint: str = dataset.fingerprint
        self.max_token_id: int = dataset.max_token_id

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> NDArray[Any]:
        sample: NDArray[Any] = self._dataset[int(self.indices[index])]
        return sample

    def locate_pieces(self, index: int) -> Iterable[DocumentPiece] | None:
        """Return the document of each span of a sequence, None if they are not known."""
        return locate_pieces(self._dataset, int(self.indices[index]))

    def check(self) -> None:
        """Raise a data problem if the source of the samples has changed since it was opened."""
        self._dataset.check()


def view_first_epoch(dataset: IndexedDataset) -> IndexedDataset:
    """Return the samples of the first epoch of a dataset, in the order of the dataset."""
    return FirstEpochView(dataset) if isinstance(dataset, OrderedDataset) else dataset
