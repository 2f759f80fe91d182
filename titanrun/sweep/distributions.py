"""Distributions of swept values: what a sweep file writes, and draws from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import Node, to_plain_data

# digits of a drawn number: more would make the names of runs too long
SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of one value.

    Args:
        kind: Its name in the sweep file, a key of `READERS`.
        low: Lower bound, None for a choice.
        high: Upper bound, None for a choice.
        choices: The values of a choice.
    """

    kind: str
    low: Any = None
    high: Any = None
    choices: tuple[Node, ...] = ()

    def draw(self, random: Random) -> Any:
        """Draw a number, or one of the nodes of a choice."""
        if self.kind == "choice":
            return random.choice(self.choices)
        if self.kind == "integer":
            return random.randint(self.low, self.high)
        if self.kind == "uniform":
            return round_significant(random.uniform(self.low, self.high))
        logarithm = random.uniform(math.log(self.low), math.log(self.high))
        return round_significant(math.exp(logarithm))

    def contains(self, value: object) -> bool:
        """Return whether a value may be drawn, ignoring the rounding to few digits."""
        if self.kind == "choice":
            # 1 and true are equal, but not the same value
            return any(repr(to_plain_data(item)) == repr(value) for item in self.choices)
        kinds = (int,) if self.kind == "integer" else (int, float)
        return type(value) in kinds and self.low <= value <= self.high


def parse_distribution(section: str, path: str, node: Node) -> Distribution:
    """Parse a distribution of a section: `{log_uniform: [1.0e-5, 1.0e-2]}`.

    Raises ProblemsFound.
    """
    where = (section, "values", path)
    if not isinstance(node.value, dict) or len(node.value) != 1:
        hint = (
            f"write one of {format_word_list(READERS, conjunction='or')}, "
            "such as {log_uniform: [1.0e-5, 1.0e-2]}"
        )
        raise ProblemsFound(
            [Problem("wrong-type", f"'{path}' needs a distribution", where, node.origin, hint=hint)]
        )
    ((name, below),) = node.value.items()
    if name not in READERS:
        meant = find_closest(name, READERS)
        hint = (
            f"did you mean '{meant}'?"
            if meant
            else f"known distributions: {format_word_list(READERS, conjunction='and')}"
        )
        problem = Problem(
            "unknown-name",
            f"unknown distribution '{name}'",
            where,
            below.key or below.origin,
            hint=hint,
            suggestion=meant,
        )
        raise ProblemsFound([problem])
    return READERS[name](where, below)


def read_bounds(
    where: tuple[str, ...], node: Node, *, above: float = -math.inf, is_whole: bool = False
) -> tuple[Any, Any]:
    """Read two numbers, the lower one first. Raise ProblemsFound if they are invalid."""
    values = to_plain_data(node)
    kinds = (int,) if is_whole else (int, float)
    if (
        isinstance(values, list)
        and len(values) == 2
        and all(type(value) in kinds for value in values)
        and above < values[0] < values[1]
        and math.isfinite(values[1])
    ):
        return values[0], values[1]
    what = (
        "two whole numbers"
        if is_whole
        else "two numbers above zero"
        if above == 0
        else "two numbers"
    )
    raise ProblemsFound(
        [
            Problem(
                "out-of-range",
                f"a distribution needs {what}, the lower one first",
                where,
                node.origin,
                got=values,
            )
        ]
    )


def round_significant(number: float) -> float:
    """Round a number to few significant digits."""
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


def read_uniform(where: tuple[str, ...], node: Node) -> Distribution:
    """Return the distribution of a number between two bounds."""
    return Distribution("uniform", *read_bounds(where, node))


def read_log_uniform(where: tuple[str, ...], node: Node) -> Distribution:
    """Return a distribution between two positive bounds, uniform in the logarithm."""
    return Distribution("log_uniform", *read_bounds(where, node, above=0))


def read_integer(where: tuple[str, ...], node: Node) -> Distribution:
    """Return the distribution of a whole number, both bounds included."""
    return Distribution("integer", *read_bounds(where, node, is_whole=True))


def read_choice(where: tuple[str, ...], node: Node) -> Distribution:
    """Return the distribution of one of several values."""
    values = node.value
    if not isinstance(values, list) or not values:
        raise ProblemsFound(
            [Problem("wrong-type", "choice needs a list of values", where, node.origin)]
        )
    return Distribution("choice", choices=tuple(values))


READERS: dict[str, Callable[[tuple[str, ...], Node], Distribution]] = {
    "uniform": read_uniform,
    "log_uniform": read_log_uniform,
    "integer": read_integer,
    "choice": read_choice,
}
