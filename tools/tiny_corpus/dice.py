"""Seeded draws that stay the same on every Python version.

They use nothing but `Random.random`.
"""

import bisect
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ranked:
    """Words in order of frequency.

    Drawn with probability proportional to 1 / (rank + flatness): Zipf-Mandelbrot.
    """

    words: tuple[str, ...]
    flatness: float = 12.0

    @cached_property
    def cumulative(self) -> list[float]:
        """Return the running sums of the weights."""
        return list(
            itertools.accumulate(
                1.0 / (rank + self.flatness) for rank in range(1, len(self.words) + 1)
            )
        )


class Dice:
    """A stream of random choices."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, stop: int) -> int:
        """Draw a whole number from 0 to stop - 1."""
        return int(self._random() * stop)

    def between(self, low: int, high: int) -> int:
        """Draw a whole number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """Return true with the given probability."""
        return self._random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of the choices, all equally likely."""
        return choices[self.below(len(choices))]

    def word(self, ranked: Ranked) -> str:
        """Draw a word by its frequency."""
        cumulative = ranked.cumulative
        place = bisect.bisect_right(cumulative, self._random() * cumulative[-1])
        return ranked.words[min(place, len(ranked.words) - 1)]

    def distinct(self, ranked: Ranked, count: int) -> list[str]:
        """`count` different words, in the order drawn."""
        drawn: dict[str, None] = {}
        while len(drawn) < count:
            drawn[self.word(ranked)] = None
        return list(drawn)

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """`count` different places of `choices`, in the order drawn."""
        return self.shuffled(choices)[:count]

    def shuffled(self, choices: Sequence[T]) -> list[T]:
        """Return the choices in a random order."""
        deck = list(choices)
        for last in range(len(deck) - 1, 0, -1):
            other = self.below(last + 1)
            deck[last], deck[other] = deck[other], deck[last]
        return deck
