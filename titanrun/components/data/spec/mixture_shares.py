"""Shares of the sources of a mixture in a number of sequences."""

import math
from collections.abc import Sequence

PATTERN_LENGTH = 65536
"""Sequences of a lane after which the order of the sources repeats."""


def share_out(
    total: int, weights: Sequence[float], limits: Sequence[int | None]
) -> tuple[int, ...]:
    """Share a number of sequences out by weights, no source getting more than its limit.

    The sum is less than `total` only if all sources reach their limits.
    """
    weights = scale_weights(weights, total)
    shares = [0.0] * len(weights)
    open_sources, rest = list(range(len(weights))), total
    while open_sources:
        weight = sum(weights[number] for number in open_sources)
        full = []
        for number in open_sources:
            shares[number] = rest * weights[number] / weight
            limit = limits[number]
            if limit is not None and shares[number] >= limit:
                shares[number] = limit
                full.append(number)
        if not full:
            break
        rest -= sum(limits[number] or 0 for number in full)
        open_sources = [number for number in open_sources if number not in full]
    counts = [math.floor(share) for share in shares]
    # the largest remainders first; those of equal size by the order of the sources
    by_remainder = sorted(open_sources, key=lambda number: counts[number] - shares[number])
    for number in by_remainder[: max(0, rest - sum(counts[number] for number in open_sources))]:
        counts[number] += 1
    return tuple(counts)


def scale_weights(weights: Sequence[float], total: int = 1) -> list[float]:
    """Return weights of the same shares, of which a sum times `total` is finite."""
    if math.isinf(total * sum(weights)):
        return [weight / max(weights) for weight in weights]
    return list(weights)


def find_too_small_weights(weights: Sequence[float]) -> list[int]:
    """Return the sources that get no sequence of the pattern of a lane, by their indices."""
    counts = share_out(PATTERN_LENGTH, weights, [None] * len(weights))
    return [number for number, count in enumerate(counts) if count == 0]


def describe_too_small_weight(weight: float) -> str:
    """Return what is wrong with the weight of such a source."""
    return f"weight {weight:g} is less than 1 sequence of {PATTERN_LENGTH:,}"


SMALL_WEIGHT_HINT = "raise it, or remove the source"
