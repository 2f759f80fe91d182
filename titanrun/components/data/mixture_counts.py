"""Number of sequences that each epoch of a mixture reads of each of its sources."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import MixtureSource
from titanrun.components.data.spec.mixture_shares import scale_weights, share_out
from titanrun.config.problems import problem_error

MAX_EPOCH_SEQUENCES = 2**31
"""Maximum length of an epoch of a mixture, whose order each rank has in memory: 40 GiB then."""


@dataclass(frozen=True, slots=True)
class EpochStretch:
    """Consecutive epochs that read the same number of sequences of each source.

    Args:
        first_epoch: Index of the first epoch.
        counts: Number of sequences of each source in an epoch.
        read_before: Number of sequences of each source before the first epoch.
    """

    first_epoch: int
    counts: tuple[int, ...]
    read_before: tuple[int, ...]


class MixtureCounts:
    """Counts of all epochs of a mixture.

    A source that has reached its limit is left out, and its share goes to the others by their
    weights, so that every epoch but the last has the same number of sequences.

    Args:
        counts: Number of sequences of each source in the first epoch, within the limits.
        weights: Weights of the sources.
        limits: Number of sequences of each source in all epochs, or None without limit.
    """

    def __init__(
        self, counts: Sequence[int], weights: Sequence[float], limits: Sequence[int | None]
    ) -> None:
        self.epoch_size = sum(counts)
        known = [limit for limit in limits if limit is not None]
        self.total_size = sum(known) if len(known) == len(limits) else None
        self.stretches = plan_stretches(tuple(counts), weights, limits)

    def count_epoch(self, epoch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the number of sequences of each source in an epoch, and before it."""
        index = bisect_right(self.stretches, epoch, key=lambda one: one.first_epoch) - 1
        stretch = self.stretches[index]
        passed = epoch - stretch.first_epoch
        before = tuple(
            read + passed * count
            for read, count in zip(stretch.read_before, stretch.counts, strict=True)
        )
        return stretch.counts, before


def plan_stretches(
    counts: tuple[int, ...], weights: Sequence[float], limits: Sequence[int | None]
) -> list[EpochStretch]:
    """Return the stretches of a mixture up to the one that has no end, or reads nothing."""
    size, epoch, read = sum(counts), 0, (0,) * len(counts)
    stretches: list[EpochStretch] = []
    while True:
        left = [
            None if limit is None else limit - done
            for limit, done in zip(limits, read, strict=True)
        ]
        fits = all(rest is None or count <= rest for count, rest in zip(counts, left, strict=True))
        now = counts if fits else share_out(size, weights, left)
        stretches.append(EpochStretch(epoch, now, read))
        lasting = [
            rest // count
            for count, rest in zip(now, left, strict=True)
            if rest is not None and count
        ]
        if not lasting:
            return stretches
        # an epoch with a source's last sequences is a stretch of its own
        number = max(1, min(lasting))
        epoch += number
        read = tuple(done + number * count for done, count in zip(read, now, strict=True))


def compute_samples_per_source(
    num_used: Sequence[int], sources: Sequence[MixtureSource]
) -> list[int]:
    """Return the number of sequences of each source in the first epoch.

    Shares follow the weights. The epoch ends when the first source reaches its `epochs`. If no
    source sets them, an epoch reads each sequence at least once.

    Raises:
        ProblemsFound: A data problem if an epoch is too long.
    """
    weights = scale_weights([source.weight for source in sources], max(num_used))
    total = sum(weights)
    lengths = [rows * total / weight for rows, weight in zip(num_used, weights, strict=True)]
    limits = {
        number: lengths[number] * source.epochs
        for number, source in enumerate(sources)
        if source.epochs is not None
    }
    of_epoch = limits or dict(enumerate(lengths))
    decisive = (min if limits else max)(of_epoch, key=lambda number: of_epoch[number])
    length = of_epoch[decisive]
    if length > MAX_EPOCH_SEQUENCES:
        key = "epochs" if limits else "weight"
        raise problem_error(
            "data",
            f"{key} {getattr(sources[decisive], key):g} makes an epoch of the mixture "
            f"{length:.3g} sequences long",
            path=("sources", decisive, key),
            hint="lower it" if limits else "raise it, or set epochs of another source",
        )
    # rounding must not drop the last sequence of the source that decides
    return [int(length * weight / total + 1e-6) for weight in weights]


def compute_source_limit(num_used: int, source: MixtureSource) -> int | None:
    """Return the number of sequences after which a source has reached its `epochs`, or None."""
    limit = math.inf if source.epochs is None else num_used * source.epochs + 1e-6
    return None if math.isinf(limit) else int(limit)


def interleave_sources(counts: Sequence[int]) -> NDArray[np.integer]:
    """Return the source of each sequence of an epoch, as evenly spread as possible."""
    # middle of each sequence's stretch of the epoch, in which its source has one sequence
    middles = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
    order = np.argsort(middles, kind="stable")
    return np.repeat(np.arange(len(counts), dtype=np.uint16), counts)[order]
