"""Order in which the samples of a dataset are read, epoch after epoch."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.indexed_dataset import IndexedDataset


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


def compute_epoch_order(dataset: Any, epoch: int, *, seed: int | None) -> NDArray[np.integer]:
    """Return the indices of the samples of an epoch in the order in which they are read.

    Without a seed, they are in the order of the dataset.
    """
    if isinstance(dataset, OrderedDataset):
        return dataset.compute_epoch_order(epoch, seed=seed)
    return shuffle_order(len(dataset), seed=seed, epoch=epoch)


def shuffle_order(
    count: int, *, seed: int | None, epoch: int, key: tuple[int, ...] = ()
) -> NDArray[np.integer]:
    """Return a permutation of `count` samples that depends on seed, epoch and key.

    Without a seed, it is the identity. Sorts random keys of PCG64: numpy guarantees that its raw
    numbers never change, which it does not for its shuffle.
    """
    dtype = np.uint32 if count <= 2**32 else np.int64
    if seed is None:
        return np.arange(count, dtype=dtype)
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, *key))
    keys = np.random.PCG64(sequence).random_raw(count)
    # stable: other kinds order equal keys differently on different CPUs
    return np.argsort(keys, kind="stable").astype(dtype)


class FirstEpochView:
    """Samples of the first epoch of an ordered dataset, in the order of the dataset.

    For what reads data once: validation, evaluation and inspection.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._order = compute_epoch_order(dataset, 0, seed=None)
        self.fingerprint: str = dataset.fingerprint
        self.max_token_id: int = dataset.max_token_id

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> NDArray[Any]:
        sample: NDArray[Any] = self._dataset[int(self._order[index])]
        return sample

    def check(self) -> None:
        """Raise a data problem if the source of the samples has changed since it was opened."""
        self._dataset.check()


def view_first_epoch(dataset: IndexedDataset) -> IndexedDataset:
    """Return the samples of the first epoch of a dataset, in the order of the dataset."""
    return FirstEpochView(dataset) if isinstance(dataset, OrderedDataset) else dataset
