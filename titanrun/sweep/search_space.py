"""The `search` section of a sweep file: its settings, distributions and first points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from titanrun.config.base import dump_config
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.config.validate_tree import validate_tree
from titanrun.sweep.config import SearchConfig, SweepConfig
from titanrun.sweep.distributions import Distribution, parse_distribution, round_significant
from titanrun.sweep.iter_paths import Point, check_mapping, iter_path_nodes

DEFAULT_STARTUP = 10
OVERRIDES = "overrides"
RECIPE_CONTENT = "recipe content"
MIN_CMAES_PATHS = 2


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """A search: its settings, and what it draws.

    Args:
        config: The settings.
        nodes: The distribution of each path as written, which gives its values an origin.
        distributions: The distribution of each path.
        first: Points to try before anything is drawn; they may leave paths out.
    """

    config: SearchConfig
    nodes: Mapping[str, Node]
    distributions: Mapping[str, Distribution]
    first: tuple[Point, ...]

    def build_point(self, values: Mapping[str, Any]) -> Point:
        """Return the point of drawn values: numbers, and labels of choices.

        Numbers are rounded to few digits, but stay between the bounds.
        """
        return {
            path: self._build_node(path, distribution, values[path])
            for path, distribution in self.distributions.items()
        }

    def restore_point(self, values: Mapping[str, Any]) -> Point:
        """Return the point of plain values, as `to_plain_values` returned them."""
        return {
            path: replace(
                label_choices(distribution)[to_flow_yaml(values[path])], key=self.nodes[path].key
            )
            if distribution.kind == "choice"
            else replace(self.nodes[path], value=values[path])
            for path, distribution in self.distributions.items()
        }

    def _build_node(self, path: str, distribution: Distribution, value: Any) -> Node:
        node = self.nodes[path]
        if distribution.kind == "choice":
            return replace(label_choices(distribution)[value], key=node.key)
        if distribution.kind != "integer":
            value = min(max(round_significant(value), distribution.low), distribution.high)
        return replace(node, value=value)

    def list_corners(self) -> list[Point]:
        """Return points in which each end of each range, and each choice, occurs once.

        The other paths of a point have their first value.
        """
        ends = {path: list_end_values(item) for path, item in self.distributions.items()}
        base = {path: values[0] for path, values in ends.items()}
        points = [base]
        for path, values in ends.items():
            points += [{**base, path: value} for value in values[1:]]
        return [self.build_point(point) for point in points]


def label_choices(distribution: Distribution) -> dict[str, Node]:
    """Return the values of a choice by a text that tells them apart, each once."""
    return {to_flow_yaml(to_plain_data(node)): node for node in distribution.choices}


def list_end_values(distribution: Distribution) -> list[Any]:
    """Return both bounds of a range, or the labels of all choices."""
    if distribution.kind == "choice":
        return list(label_choices(distribution))
    return [distribution.low, distribution.high]


def read_search(node: Node) -> SearchSpace:
    """Read a `search` section. Raise ProblemsFound with all its problems."""
    check_mapping("search", node)
    assert isinstance(node.value, dict)
    settings = {key: below for key, below in node.value.items() if key not in ("values", "first")}
    checked = validate_tree(SearchConfig, replace(node, value=settings))
    words = ("missing required key 'count'", "missing required key 'count' in search")
    problems = [
        replace(item, path=("search", *item.path), message=item.message.replace(*words))
        for item in checked.problems
    ]
    values = node.value.get("values")
    if values is None:
        raise problem_error(
            "missing-key",
            "missing required key 'values' in search",
            path=("search",),
            origin=node.key or node.origin,
            hint="write values: {optimizer.lr: {log_uniform: [1.0e-5, 1.0e-2]}}",
        )
    check_mapping("search.values", values)
    nodes = dict(iter_path_nodes(values, are_draws=True))
    distributions: dict[str, Distribution] = {}
    for path, asked in nodes.items():
        try:
            distributions[path] = parse_distribution("search", path, asked)
        except ProblemsFound as found:
            problems += found.problems
    if not problems:
        assert checked.config is not None
        problems += find_cmaes_problems(checked.config, node, distributions)
        problems += find_unused_startup_problems(checked.config, node)
    first = read_first_points(node, distributions, problems)
    if problems:
        raise ProblemsFound(problems)
    assert checked.config is not None
    check_first_fit(node, checked.config, first)
    return SearchSpace(checked.config, nodes, distributions, first)


def find_cmaes_problems(
    config: SearchConfig, node: Node, distributions: Mapping[str, Distribution]
) -> list[Problem]:
    """Return the problem of a space in which `cmaes` would draw at random without a word."""
    choices = [path for path, item in distributions.items() if item.kind == "choice"]
    if config.sampler != "cmaes" or (len(distributions) >= MIN_CMAES_PATHS and not choices):
        return []
    what = (
        f"cmaes needs numbers, but '{choices[0]}' is a choice"
        if choices
        else "cmaes needs two or more values"
    )
    sampler = find_node(node, ("sampler",))
    return [
        Problem(
            "conflict",
            what,
            ("search", "sampler"),
            None if sampler is None else sampler.origin,
            hint="use sampler: tpe",
        )
    ]


def find_unused_startup_problems(config: SearchConfig, node: Node) -> list[Problem]:
    """Return the problem of a `startup` that the sampler does not have."""
    startup = find_node(node, ("startup",))
    if startup is None or config.startup is None or config.sampler not in ("random", "qmc"):
        return []
    return [
        Problem(
            "no-effect",
            f"{config.sampler} does not support startup",
            ("search", "startup"),
            startup.origin,
            hint="remove it",
        )
    ]


def read_first_points(
    node: Node, distributions: Mapping[str, Distribution], problems: list[Problem]
) -> tuple[Point, ...]:
    """Return the points of `first`, and append their problems."""
    assert isinstance(node.value, dict)
    first = node.value.get("first")
    if first is None:
        return ()
    if not isinstance(first.value, list):
        hint = "write first: [{optimizer.lr: 3.0e-4}]"
        problems.append(
            Problem(
                "wrong-type",
                "first must contain points, each a mapping of paths to values",
                ("search", "first"),
                first.origin,
                hint=hint,
            )
        )
        return ()
    points = []
    for item in first.value:
        check_mapping("an item of first", item)
        point = dict(iter_path_nodes(item))
        problems += find_first_value_problems(point, distributions)
        points.append(point)
    return tuple(points)


def find_first_value_problems(
    point: Point, distributions: Mapping[str, Distribution]
) -> list[Problem]:
    """Return the problems of a first point: paths and values that are never drawn."""
    found = []
    for path, node in point.items():
        value = to_plain_data(node)
        where = ("search", "first", path)
        if path not in distributions:
            found.append(
                Problem(
                    "unknown-key",
                    f"'{path}' is not in the values of the search",
                    where,
                    node.key or node.origin,
                    hint="add its distribution to values, or set it in overrides",
                )
            )
        elif not distributions[path].contains(value):
            found.append(
                Problem(
                    "out-of-range",
                    f"{to_flow_yaml(value)} is outside the distribution of '{path}'",
                    where,
                    node.origin,
                    hint="use a value that may be drawn, or widen the distribution",
                )
            )
    return found


def check_first_fit(node: Node, config: SearchConfig, first: Sequence[Point]) -> None:
    """Raise ProblemsFound if there are more first points than trials."""
    if len(first) > config.count:
        count = find_node(node, ("count",))
        raise problem_error(
            "conflict",
            f"first has {len(first)} points, but count is {config.count}",
            path=("search", "count"),
            origin=None if count is None else count.origin,
            hint="raise count, or remove first points",
        )


def describe_search(
    space: SearchSpace, config: SweepConfig, overrides: Sequence[str]
) -> dict[str, object]:
    """Return what must not change while a search goes on, as plain data.

    `count` and `slots` may change, and points already tried are not tried again.
    """
    settings, rule = space.config, config.early_stopping
    # a pruner compares with what it has recorded of earlier trials
    pruner = {} if rule is None or not rule.is_pruner else {"early_stopping": dump_config(rule)}
    return {
        "recipe": config.recipe,
        OVERRIDES: list(overrides),
        "metric": config.metric,
        "goal": config.goal,
        "sampler": settings.sampler,
        "seed": settings.seed,
        "startup": settings.startup or DEFAULT_STARTUP,
        "first": [to_plain_values(point) for point in space.first],
        "values": {path: to_plain_data(node) for path, node in space.nodes.items()},
        "filters": list(config.filters),
        **pruner,
    }


def to_plain_values(point: Point) -> dict[str, Any]:
    """Return the values of a point as plain data."""
    return {path: to_plain_data(node) for path, node in point.items()}
