"""Mixtures of streams and indexed datasets, dealt within each lane."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import MixtureDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.mixture_counts import interleave_sources
from titanrun.components.data.sample_order import SampleOrder, shuffle_order
from titanrun.components.data.spec.mixture_shares import (
    PATTERN_LENGTH,
    SMALL_WEIGHT_HINT,
    describe_too_small_weight,
    find_too_small_weights,
    share_out,
)
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import problem_error


@dataclass(frozen=True)
class MixturePattern:
    """Source of each sequence of each lane.

    Each lane begins at a place of its own in the pattern, so that a global batch holds all sources
    in their shares, and each lane meets each source.
    """

    sources: NDArray[np.integer]
    num_lanes: int

    def find_source(self, lane: int, row: int) -> int:
        """Return the source of a sequence of a lane."""
        return int(self.sources[(row + self._find_phase(lane)) % len(self.sources)])

    def count_before(self, lane: int, row: int, source: int) -> int:
        """Return how many sequences of a lane before `row` are of a source."""
        before, phase = self._counts_before[source], self._find_phase(lane)
        periods, rest = divmod(phase + row, len(self.sources))
        return int(periods * before[-1] + before[rest] - before[phase])

    @cached_property
    def _counts_before(self) -> list[NDArray[np.integer]]:
        """Number of sequences of each source before each place of the pattern, and in all."""
        return [
            np.concatenate([[0], np.cumsum(self.sources == source)])
            for source in range(int(self.sources.max()) + 1)
        ]

    def _find_phase(self, lane: int) -> int:
        return lane * len(self.sources) // self.num_lanes


def build_mixture_pattern(config: MixtureDatasetConfig, num_lanes: int) -> MixturePattern:
    """Build the pattern of a mixture by its weights.

    Raises:
        ProblemsFound: A data problem if a weight is too small for one sequence of the pattern.
    """
    weights = [source.weight for source in config.sources]
    for number in find_too_small_weights(weights):
        raise problem_error(
            "data",
            describe_too_small_weight(weights[number]),
            path=("sources", number, "weight"),
            hint=SMALL_WEIGHT_HINT,
        )
    counts = share_out(PATTERN_LENGTH, weights, [None] * len(weights))
    return MixturePattern(interleave_sources(counts), num_lanes)


class IndexedLanes:
    """Sequences of an indexed dataset, dealt to lanes, epoch after epoch.

    Lane l gets the sequences l, l + L, l + 2 L and so on of all epochs one after the other.

    Args:
        dataset: Sequences.
        size: Number of sequences that are used, the first ones.
        source: Index of the dataset in the mixture.
        num_lanes: Number of lanes.
        seed: Seed of the order of each epoch, None to keep the order of the dataset.
    """

    def __init__(
        self, dataset: IndexedDataset, *, size: int, source: int, num_lanes: int, seed: int | None
    ) -> None:
        self.dataset, self._size, self._source = dataset, size, source
        self._num_lanes, self._seed = num_lanes, seed
        self._orders: dict[int, SampleOrder] = {}

    def read(self, lane: int, count: int) -> NDArray[np.int64]:
        """Return the sequence of a lane after `count` others."""
        epoch, place = divmod(count * self._num_lanes + lane, self._size)
        with nest_problems(("sources", self._source, "dataset")):
            row: NDArray[np.int64] = self.dataset[int(self._get_order(epoch)[place])]
        return row

    def check(self) -> None:
        """Raise a data problem if the dataset has changed since it was opened."""
        with nest_problems(("sources", self._source, "dataset")):
            self.dataset.check()

    def _get_order(self, epoch: int) -> SampleOrder:
        """Return the order of an epoch, as in `MixtureDataset`. Two are kept: lanes differ."""
        if epoch not in self._orders:
            self._orders = {
                number: order for number, order in self._orders.items() if number == epoch - 1
            }
            self._orders[epoch] = shuffle_order(
                self._size, seed=self._seed, epoch=epoch, key=(self._source + 1,)
            )
        return self._orders[epoch]


def describe_pattern(pattern: MixturePattern | None) -> Sequence[int]:
    """Return the number of sequences of each source in a pattern, for a fingerprint."""
    return [] if pattern is None else np.bincount(pattern.sources).tolist()
