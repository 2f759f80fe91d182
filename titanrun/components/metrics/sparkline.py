"""Curve of a quantity over a whole run, in a few characters."""

import math
from dataclasses import dataclass

LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Bucket:
    """Sum of neighboring values."""

    total: float
    count: int


class Sparkline:
    """Curve that grows by one value at a time.

    Each character shows the mean of an equal share of the values.

    Args:
        width: Characters, once there are as many values.
    """

    def __init__(self, width: int = 16) -> None:
        self.width = width
        self._bucket_capacity = 1
        self._buckets: list[Bucket] = []

    def add(self, value: float) -> None:
        """Append a value; values that are not finite are ignored."""
        if not math.isfinite(value):
            return
        if not self._buckets or self._buckets[-1].count == self._bucket_capacity:
            # added with its value: the drawing thread must never see an empty bucket
            self._buckets.append(Bucket(value, 1))
        else:
            self._buckets[-1].total += value
            self._buckets[-1].count += 1
        if len(self._buckets) > 4 * self.width:
            self._join_neighbours()

    def _join_neighbours(self) -> None:
        """Halve the number of buckets, so that the curve stays short however long the run is."""
        self._bucket_capacity *= 2
        pairs = [self._buckets[i : i + 2] for i in range(0, len(self._buckets), 2)]
        self._buckets = [
            Bucket(sum(one.total for one in pair), sum(one.count for one in pair)) for pair in pairs
        ]

    def __str__(self) -> str:
        means = [_mean(share) for share in self._group_buckets()]
        if len(means) < 2:
            return ""
        low, high = min(means), max(means)
        scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
        return "".join(LEVELS[round((mean - low) * scale)] for mean in means)

    def _group_buckets(self) -> list[list[Bucket]]:
        """Group the buckets in order into at most `width` groups."""
        buckets = list(self._buckets)
        width = min(self.width, len(buckets))
        return [
            buckets[i * len(buckets) // width : (i + 1) * len(buckets) // width]
            for i in range(width)
        ]


def _mean(buckets: list[Bucket]) -> float:
    return sum(bucket.total for bucket in buckets) / sum(bucket.count for bucket in buckets)
