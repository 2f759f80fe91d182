"""Random values of a sweep, the same for the same seed, and for each path its own: another path beside it changes none of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from titanrun.config.base import Config
from titanrun.config.check import check
from titanrun.config.fields import bookkeeping
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import Node, plain
from titanrun.config.types import NonNegativeInt, PositiveInt

# digits of a drawn number: more would fill the names of runs
DIGITS = 4
Draw = Callable[[Random], Any]


class RandomConfig(Config):
    """How often is drawn, and from which seed."""

    count: PositiveInt = bookkeeping(examples=[20])
    """Points to draw."""

    seed: NonNegativeInt = bookkeeping(0)
    """Another seed, other points."""


def drawn(node: Node, values: Mapping[str, Node]) -> list[dict[str, Node]]:
    """The points of a `random` section. Raises ProblemsFound."""
    assert isinstance(node.value, dict)
    checked = check(
        RandomConfig,
        replace(node, value={key: below for key, below in node.value.items() if key != "values"}),
    )
    words = ("the recipe needs", "random needs")
    problems = [
        replace(item, path=("random", *item.path), message=item.message.replace(*words))
        for item in checked.problems
    ]
    draws: dict[str, Draw] = {}
    for path, asked in values.items():
        try:
            draws[path] = draw_of(path, asked)
        except ProblemsFound as found:
            problems += found.problems
    if problems:
        raise ProblemsFound(problems)
    assert checked.config is not None
    config = checked.config
    streams = {path: Random(f"{config.seed} {path}") for path in draws}
    # a choice may draw what stands in the file, with its own place
    return [
        {
            path: node
            if isinstance(node := draw(streams[path]), Node)
            else replace(values[path], value=node)
            for path, draw in draws.items()
        }
        for _ in range(config.count)
    ]


def draw_of(path: str, asked: Node) -> Draw:
    """The draw that a value asks for: `{log_uniform: [1.0e-5, 1.0e-2]}`. Raises ProblemsFound."""
    known = {"uniform": uniform, "log_uniform": log_uniform, "integer": integer, "choice": choice}
    where = ("random", "values", path)
    if not isinstance(asked.value, dict) or len(asked.value) != 1:
        help = (
            f"write one of {listing(known, last='or')}, such as {{log_uniform: [1.0e-5, 1.0e-2]}}"
        )
        raise ProblemsFound(
            [
                Problem(
                    "wrong-type", f"'{path}' needs a distribution", where, asked.origin, help=help
                )
            ]
        )
    ((name, below),) = asked.value.items()
    if name not in known:
        meant = closest(name, known)
        help = f"did you mean '{meant}'?" if meant else f"there are {listing(known, last='and')}"
        problem = Problem(
            "unknown-name",
            f"unknown distribution '{name}'",
            where,
            below.key or below.origin,
            help=help,
            suggestion=meant,
        )
        raise ProblemsFound([problem])
    return known[name](where, below)


def bounds(
    where: tuple[str, ...], node: Node, *, above: float = -math.inf, is_whole: bool = False
) -> tuple[Any, Any]:
    """Two numbers, the lower one first. Raises ProblemsFound."""
    values = plain(node)
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
                f"a draw needs {what}, the lower one first",
                where,
                node.origin,
                got=values,
            )
        ]
    )


def rounded(number: float) -> float:
    """A number of few digits."""
    return float(f"{number:.{DIGITS}g}")


def uniform(where: tuple[str, ...], node: Node) -> Draw:
    """Any number between two, all alike."""
    low, high = bounds(where, node)
    return lambda random: rounded(random.uniform(low, high))


def log_uniform(where: tuple[str, ...], node: Node) -> Draw:
    """Any number between two above zero, all orders of magnitude alike."""
    low, high = bounds(where, node, above=0)
    return lambda random: rounded(math.exp(random.uniform(math.log(low), math.log(high))))


def integer(where: tuple[str, ...], node: Node) -> Draw:
    """A whole number, both bounds included."""
    low, high = bounds(where, node, is_whole=True)
    return lambda random: random.randint(low, high)


def choice(where: tuple[str, ...], node: Node) -> Draw:
    """One of several values."""
    values = node.value
    if not isinstance(values, list) or not values:
        raise ProblemsFound(
            [Problem("wrong-type", "choice needs a list of values", where, node.origin)]
        )
    return lambda random: random.choice(values)
