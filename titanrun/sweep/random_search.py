"""Random values of a sweep, reproducible by seed.

Each path has its own random stream, so that adding another path changes none of the values.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping
from titanrun.config.problems import ProblemsFound
from titanrun.config.tree import Node
from titanrun.config.types import NonNegativeInt, PositiveInt
from titanrun.config.validate_tree import validate_tree
from titanrun.sweep.distributions import Distribution, parse_distribution


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
    draws: dict[str, Distribution] = {}
    for path, asked in values.items():
        try:
            draws[path] = parse_distribution("random", path, asked)
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
            if isinstance(node := draws[path].draw(streams[path]), Node)
            else replace(values[path], value=node)
            for path in draws
        }
        for _ in range(config.count)
    ]
