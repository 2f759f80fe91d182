"""Points of a search: validation of its space before the first run, and runs of drawn points."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from titanrun.config.problems import Origin, Problem, ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.recipe.resolving.read_recipe import read_tree
from titanrun.sweep.iter_paths import Point
from titanrun.sweep.point_filters import PointFilter, parse_filter
from titanrun.sweep.run_names import compute_short_digest, format_point_name, shorten_paths
from titanrun.sweep.search_space import (
    DEFAULT_STARTUP,
    SearchSpace,
    list_end_values,
    to_plain_values,
)
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.validate_points import (
    PlannedRun,
    Resolver,
    TriedPoint,
    deduplicate_problems,
    get_text_nodes,
    is_selected,
    merge_overrides,
    resolve_here,
    to_sweep_origin,
    try_point,
)


@dataclass(frozen=True, slots=True)
class PointPlanner:
    """Planner of the runs of a search.

    Args:
        sweep: The sweep file.
        space: What it searches.
        common: Overrides of all runs.
        environment: The environment variables.
        filters: The conditions that every point must satisfy.
        written: The recipe without a point, as plain data.
        resolve: Function that resolves the recipe of a point.
    """

    sweep: Sweep
    space: SearchSpace
    common: tuple[str, ...]
    environment: Mapping[str, str]
    filters: tuple[PointFilter, ...]
    written: Mapping[str, object]
    resolve: Resolver = resolve_here

    @property
    def count(self) -> int:
        """Number of trials in all."""
        most = self.sweep.config.max_runs
        return self.space.config.count if most is None else min(self.space.config.count, most)

    def try_point(self, point: Point) -> TriedPoint:
        """Resolve the recipe of a point."""
        return try_point(self.sweep, point, self.common, self.environment, self.resolve)

    def find_rejection(self, case: TriedPoint) -> str | None:
        """Return why a point is not run, or None if it is."""
        if not is_selected(case, self.filters, self.written):
            return "it does not satisfy the filters"
        errors = [problem for problem in case.problems if problem.severity == "error"]
        return errors[0].message if errors else None

    def build_run(self, case: TriedPoint, used_names: Mapping[str, object]) -> PlannedRun:
        """Build the run of a valid point; names of runs with other values are taken."""
        assert case.resolved is not None
        values = to_plain_values(case.point)
        name = format_point_name(values, shorten_paths(list(self.space.distributions)))
        if name in used_names and not are_equal_points(used_names[name], values):
            name = f"{name}-{compute_short_digest(values)}"
        overrides = (*self.common, *case.overrides)
        return PlannedRun(name, self.sweep.folder / name, values, overrides, case.resolved)

    def locate_problems(self, case: TriedPoint) -> list[Problem]:
        """Return the problems of a point, located in the sweep file."""
        shared = get_text_nodes(self.sweep, "overrides", self.sweep.config.overrides)
        return [to_sweep_origin(item, {**shared, **case.overrides}) for item in case.problems]


def are_equal_points(first: object, second: object) -> bool:
    """Return whether the values of two points are the same, also in their types."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def build_planner(
    sweep: Sweep,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    resolve: Resolver = resolve_here,
) -> PointPlanner:
    """Build the planner of a search. Raise ProblemsFound if a filter cannot be read."""
    assert sweep.search is not None
    common = tuple(merge_overrides(sweep.config.overrides, overrides))
    nodes: Mapping[str, Node] = get_text_nodes(sweep, "filters", sweep.config.filters)
    filters = tuple(parse_filter(text, node.origin) for text, node in nodes.items())
    written: Any = (
        to_plain_data(read_tree(sweep.recipe, common, environment).tree) if filters else {}
    )
    return PointPlanner(sweep, sweep.search, common, environment, filters, written, resolve)


def validate_space(planner: PointPlanner) -> tuple[list[PlannedRun], list[Problem]]:
    """Return runs at the ends of the space, and warnings about them.

    Tried are each end of each range, each choice, the first points, and one random point. Raises
    ProblemsFound with the problems of all of them, each once: those of other points are found when
    they are drawn.
    """
    tried = [planner.try_point(point) for point in list_sample_points(planner.space)]
    kept = [case for case in tried if is_selected(case, planner.filters, planner.written)]
    problems = deduplicate_problems(
        [problem for case in kept for problem in planner.locate_problems(case)]
    )
    if any(problem.severity == "error" for problem in problems):
        raise ProblemsFound(problems)
    runs = [planner.build_run(case, {}) for case in kept]
    if errors := find_pruner_length_problems(planner, runs):
        raise ProblemsFound(errors)
    warnings = [*find_startup_warnings(planner), *find_late_stopping_warnings(planner, runs)]
    return runs, [*problems, *warnings]


def find_num_steps(planner: PointPlanner) -> int | None:
    """Return the number of steps of the runs, None if it depends on the data."""
    cases = (planner.try_point(point) for point in list_sample_points(planner.space))
    steps = (case.resolved.run.training.steps for case in cases if case.resolved is not None)
    found = next(steps, None)
    return found if isinstance(found, int) else None


def find_pruner_length_problems(planner: PointPlanner, runs: Sequence[PlannedRun]) -> list[Problem]:
    """Return the problem of a rule that needs one number of steps for all runs."""
    rule = planner.sweep.config.early_stopping
    if rule is None or not rule.needs_num_steps:
        return []
    lengths = sorted({str(run.resolved.run.training.steps) for run in runs})
    if len(lengths) < 2 and lengths != ["None"]:
        return []
    problem = (
        "hyperband needs training.steps, but the length of the runs is in epochs"
        if lengths == ["None"]
        else "hyperband needs the same training.steps in all runs, but they differ: "
        + format_word_list(lengths, conjunction="and")
    )
    hint = "use asha, or give all runs the same number of steps"
    path = ("early_stopping",)
    return [Problem("conflict", problem, path, find_sweep_origin(planner.sweep, *path), hint=hint)]


def find_late_stopping_warnings(planner: PointPlanner, runs: Sequence[PlannedRun]) -> list[Problem]:
    """Return the warning about early stopping that begins after the end of all runs."""
    rule = planner.sweep.config.early_stopping
    ends = [run.resolved.run.training.steps for run in runs]
    lengths = [end for end in ends if isinstance(end, int)]
    if rule is None or len(lengths) < len(ends) or rule.earliest_step <= max(lengths, default=0):
        return []
    path = ("early_stopping", "first_step")
    message = (
        f"early stopping begins at step {rule.earliest_step}, but the runs end at step "
        f"{max(lengths)}"
    )
    origin = find_sweep_origin(planner.sweep, *path)
    hint = "lower first_step"
    return [Problem("no-effect", message, path, origin, "warning", hint=hint)]


def find_sweep_origin(sweep: Sweep, *path: str) -> Origin | None:
    """Return the location of a value in the sweep file, or of the mapping that lacks it."""
    root = read_source(str(sweep.file))
    node = find_node(root, path) or find_node(root, path[:1])
    return None if node is None else node.origin


def find_startup_warnings(planner: PointPlanner) -> list[Problem]:
    """Return the warning about a search that only ever draws at random."""
    config = planner.space.config
    startup = config.startup or DEFAULT_STARTUP
    if config.sampler in ("random", "qmc") or config.count > startup:
        return []
    message = f"{config.sampler} draws the first {startup} trials at random: all {config.count}"
    hint = "raise count, or lower startup"
    return [Problem("no-effect", message, ("search", "count"), severity="warning", hint=hint)]


def list_sample_points(space: SearchSpace) -> list[Point]:
    """Return the points that are tried before the first run."""
    corners = space.list_corners()
    random = Random(space.config.seed)
    ends = {path: list_end_values(item) for path, item in space.distributions.items()}
    drawn = {
        path: item.draw(random) if item.kind != "choice" else random.choice(ends[path])
        for path, item in space.distributions.items()
    }
    first = [{**corners[0], **point} for point in space.first]
    return [*corners, space.build_point(drawn), *first]
