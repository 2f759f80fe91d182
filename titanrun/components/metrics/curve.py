"""The course of a quantity over a whole run in a few characters."""

import math
from dataclasses import dataclass

LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Bucket:
    """Neighbouring values, added up."""

    total: float
    count: int


class Curve:
    """A curve that grows value by value; each character stands for the mean of its share of them, high is high.

    Args:
        width: characters, as soon as there are so many values.
    """

    def __init__(self, width: int = 16) -> None:
        self.width = width
        self._counts_to = 1
        self._buckets: list[Bucket] = []

    def add(self, value: float) -> None:
        """Append a value; one that is not finite is left out."""
        if not math.isfinite(value):
            return
        if not self._buckets or self._buckets[-1].count == self._counts_to:
            # whole at once: the thread that draws must not meet an empty one
            self._buckets.append(Bucket(value, 1))
        else:
            self._buckets[-1].total += value
            self._buckets[-1].count += 1
        if len(self._buckets) > 4 * self.width:
            self._join_neighbours()

    def _join_neighbours(self) -> None:
        """Half as many buckets, so that the curve stays short however long the run is."""
        self._counts_to *= 2
        pairs = [self._buckets[i : i + 2] for i in range(0, len(self._buckets), 2)]
        self._buckets = [
            Bucket(sum(one.total for one in pair), sum(one.count for one in pair)) for pair in pairs
        ]

    def __str__(self) -> str:
        means = [_mean(share) for share in self._shares()]
        if len(means) < 2:
            return ""
        low, high = min(means), max(means)
        scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
        return "".join(LEVELS[round((mean - low) * scale)] for mean in means)

    def _shares(self) -> list[list[Bucket]]:
        """The buckets dealt in order to at most `width` groups."""
        buckets = list(self._buckets)
        width = min(self.width, len(buckets))
        return [
            buckets[i * len(buckets) // width : (i + 1) * len(buckets) // width]
            for i in range(width)
        ]


def _mean(buckets: list[Bucket]) -> float:
    return sum(bucket.total for bucket in buckets) / sum(bucket.count for bucket in buckets)
