"""Random values of a sweep, reproducible by seed.

Each path has its own random stream, so that adding another path changes none of the values.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import Node, to_plain_data
from titanrun.config.types import NonNegativeInt, PositiveInt
from titanrun.config.validate_tree import validate_tree

# digits of a drawn number: more would make the names of runs too long
SIGNIFICANT_DIGITS = 4
DrawFn = Callable[[Random], Any]


class RandomConfig(Config):
    """Number of random points and their seed."""

    count: PositiveInt = bookkeeping(examples=[20])
    """Number of points to draw."""

    seed: NonNegativeInt = bookkeeping(0)
    """Seed of the random points."""


def draw_points(node: Node, values: Mapping[str, Node]) -> list[dict[str, Node]]:
    """Return the points of a `random` section. Raise ProblemsFound if it is invalid."""
    assert isinstance(node.value, dict)
    checked = validate_tree(
        RandomConfig,
        replace(node, value={key: below for key, below in node.value.items() if key != "values"}),
    )
    words = ("missing required key 'count'", "missing required key 'count' in random")
    problems = [
        replace(item, path=("random", *item.path), message=item.message.replace(*words))
        for item in checked.problems
    ]
    draws: dict[str, DrawFn] = {}
    for path, asked in values.items():
        try:
            draws[path] = parse_distribution(path, asked)
        except ProblemsFound as found:
            problems += found.problems
    if problems:
        raise ProblemsFound(problems)
    assert checked.config is not None
    config = checked.config
    streams = {path: Random(f"{config.seed} {path}") for path in draws}
    # a choice may draw a node of the file, with its own origin
    return [
        {
            path: replace(node, key=values[path].key)
            if isinstance(node := draw(streams[path]), Node)
            else replace(values[path], value=node)
            for path, draw in draws.items()
        }
        for _ in range(config.count)
    ]


def parse_distribution(path: str, node: Node) -> DrawFn:
    """Parse a distribution: `{log_uniform: [1.0e-5, 1.0e-2]}`.

    Raises ProblemsFound.
    """
    known = {
        "uniform": build_uniform_draw,
        "log_uniform": build_log_uniform_draw,
        "integer": build_integer_draw,
        "choice": build_choice_draw,
    }
    where = ("random", "values", path)
    if not isinstance(node.value, dict) or len(node.value) != 1:
        hint = (
            f"write one of {format_word_list(known, conjunction='or')}, "
            "such as {log_uniform: [1.0e-5, 1.0e-2]}"
        )
        raise ProblemsFound(
            [Problem("wrong-type", f"'{path}' needs a distribution", where, node.origin, hint=hint)]
        )
    ((name, below),) = node.value.items()
    if name not in known:
        meant = find_closest(name, known)
        hint = (
            f"did you mean '{meant}'?"
            if meant
            else f"known distributions: {format_word_list(known, conjunction='and')}"
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
    return known[name](where, below)


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


def build_uniform_draw(where: tuple[str, ...], node: Node) -> DrawFn:
    """Return a draw of a number between two bounds, uniformly distributed."""
    low, high = read_bounds(where, node)
    return lambda random: round_significant(random.uniform(low, high))


def build_log_uniform_draw(where: tuple[str, ...], node: Node) -> DrawFn:
    """Return a draw between two positive bounds, uniform in the logarithm."""
    low, high = read_bounds(where, node, above=0)
    return lambda random: round_significant(math.exp(random.uniform(math.log(low), math.log(high))))


def build_integer_draw(where: tuple[str, ...], node: Node) -> DrawFn:
    """Return a draw of a whole number, both bounds included."""
    low, high = read_bounds(where, node, is_whole=True)
    return lambda random: random.randint(low, high)


def build_choice_draw(where: tuple[str, ...], node: Node) -> DrawFn:
    """Return a draw of one of several values."""
    values = node.value
    if not isinstance(values, list) or not values:
        raise ProblemsFound(
            [Problem("wrong-type", "choice needs a list of values", where, node.origin)]
        )
    return lambda random: random.choice(values)
