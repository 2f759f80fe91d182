"""Validation of all sweep points before the first run; problems point into the sweep file."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from titanrun.config.base import dump_config
from titanrun.config.problems import Origin, Problem, ProblemsFound, RelatedLocation
from titanrun.config.read_source import read_source
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.recipe.resolving.read_recipe import read_tree
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.sweep.iter_paths import Point
from titanrun.sweep.point_filters import PointFilter, build_value_lookup, parse_filter
from titanrun.sweep.run_names import build_point_names
from titanrun.sweep.sweep_file import Sweep, format_sweep_override

Resolver = Callable[..., Resolved]
"""Function that resolves the recipe of a point, as `resolve_recipe` does."""
resolve_here: Resolver = partial(resolve_recipe, should_check_inputs=True)

# folder and name of a run, which do not affect its results
NON_IDENTITY_FIELDS = ("name", "description", "dump_folder")
NON_BUILD_SECTIONS = ("lr_scheduler", "debug", "metrics", "checkpoint", "guard")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Planned run of a sweep.

    Its name and folder, the varied values by path, the arguments of `train`, and the resolved
    recipe.
    """

    name: str
    folder: Path
    values: Mapping[str, object]
    overrides: tuple[str, ...]
    resolved: Resolved

    @property
    def arguments(self) -> list[str]:
        """Arguments of `titanrun train` after the recipe."""
        return [*self.overrides, f"dump_folder={self.folder}"]


def validate_points(
    sweep: Sweep,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    resolve: Resolver = resolve_here,
) -> tuple[list[PlannedRun], list[Problem]]:
    """Return the runs of a sweep, and warnings about them.

    `overrides` are for all runs, from the command line. Raises ProblemsFound with the problems of
    all points, each problem once.
    """
    common = merge_overrides(sweep.config.overrides, overrides)
    shared = get_text_nodes(sweep, "overrides", sweep.config.overrides)
    tried = select_points(sweep, common, environment, resolve)
    if not tried:
        message = "no point of the sweep satisfies its filters"
        raise ProblemsFound([Problem("usage", message, hint="relax the filters")])
    problems = [
        to_sweep_origin(problem, {**shared, **case.overrides})
        for case in tried
        for problem in case.problems
    ]
    found = [
        (case.point, (*common, *case.overrides), case.resolved)
        for case in tried
        if case.resolved is not None
    ]
    problems = deduplicate_problems(problems)
    if any(problem.severity == "error" for problem in problems):
        raise ProblemsFound(problems)
    texts = [dump_recipe_identity(resolved) for _, _, resolved in found]
    first = [texts.index(text) for text in texts]
    problems += [
        build_duplicate_point_problem(found[at][0], found[before][0])
        for at, before in enumerate(first)
        if at != before
    ]
    different = [case for at, case in enumerate(found) if first[at] == at]
    values = [
        {path: to_plain_data(node) for path, node in point.items()} for point, _, _ in different
    ]
    named = zip(build_point_names(values), values, different, strict=True)
    return [
        PlannedRun(name, sweep.folder / name, tried, words, resolved)
        for name, tried, (_, words, resolved) in named
    ], deduplicate_problems(problems)


def merge_overrides(file: Sequence[str], command_line: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep file and, in their place, those of the command line."""
    given = {get_override_path(text) for text in command_line}
    return [*(text for text in file if get_override_path(text) not in given), *command_line]


@dataclass(frozen=True, slots=True)
class TriedPoint:
    """Point of a sweep with its overrides, its resolved recipe if it is valid, and its problems."""

    point: Point
    overrides: Mapping[str, Node]
    resolved: Resolved | None
    problems: tuple[Problem, ...]


def select_points(
    sweep: Sweep, common: Sequence[str], environment: Mapping[str, str], resolve: Resolver
) -> list[TriedPoint]:
    """Return the points that satisfy all filters, at most `max_runs` of them.

    Filters compare resolved values: defaults, `auto` and units are decided. A point that is not
    valid is compared as written, so that filters can exclude it.
    """
    filters = [
        parse_filter(text, node.origin)
        for text, node in get_text_nodes(sweep, "filters", sweep.config.filters).items()
    ]
    cases = (try_point(sweep, point, common, environment, resolve) for point in sweep.points)
    if filters:
        written: Any = to_plain_data(read_tree(sweep.recipe, common, environment).tree)
        cases = (case for case in cases if is_selected(case, filters, written))
    return list(islice(cases, sweep.config.max_runs))


def try_point(
    sweep: Sweep,
    point: Point,
    common: Sequence[str],
    environment: Mapping[str, str],
    resolve: Resolver,
) -> TriedPoint:
    """Resolve the recipe of a point."""
    own = {format_sweep_override(path, node): node for path, node in point.items()}
    try:
        resolved = resolve(sweep.recipe, [*common, *own], environment=environment)
    except ProblemsFound as error:
        return TriedPoint(point, own, None, tuple(error.problems))
    return TriedPoint(point, own, resolved, tuple(resolved.warnings))


def is_selected(
    case: TriedPoint, filters: Sequence[PointFilter], written: Mapping[str, object]
) -> bool:
    """Return whether a point satisfies all filters. `written` is the recipe without points."""
    own = {path: to_plain_data(node) for path, node in case.point.items()}
    sources: list[Mapping[str, object]] = [own, written]
    if case.resolved is not None:
        sources.insert(0, dump_config(case.resolved.run))
    for condition in filters:
        try:
            holds = condition.holds(build_value_lookup(sources, condition.origin))
        except ProblemsFound:
            # what an invalid point does not write cannot exclude it: its problems are reported
            if case.resolved is not None:
                raise
            continue
        if not holds:
            return False
    return True


def get_override_path(text: str) -> str:
    """Return the path of an override: one on the command line replaces that of the file."""
    return re.split(r"[=+!]|-=", text, maxsplit=1)[0]


def get_text_nodes(sweep: Sweep, key: str, texts: Sequence[str]) -> dict[str, Node]:
    """Return the texts of a list in the sweep file with their nodes."""
    node = find_node(read_source(str(sweep.file)), (key,))
    items = node.value if node is not None and isinstance(node.value, list) else []
    return dict(zip(texts, items, strict=True))


def to_sweep_origin(problem: Problem, override_nodes: Mapping[str, Node]) -> Problem:
    """Return the problem of a value from the sweep, located in the sweep file."""
    related = tuple(
        replace(item, origin=find_file_origin(item.origin, override_nodes))
        for item in problem.related
    )
    origin = find_file_origin(problem.origin, override_nodes)
    return replace(problem, origin=origin, related=related, fix=None)


def find_file_origin(origin: Origin | None, override_nodes: Mapping[str, Node]) -> Origin | None:
    """Return the location of a sweep value, or of its key, in the file.

    Other locations are unchanged.
    """
    if (
        origin is None
        or origin.source.kind != "override"
        or origin.source.text not in override_nodes
    ):
        return origin
    node = override_nodes[origin.source.text]
    is_key = origin.column <= origin.source.text.find("=")
    return node.key if is_key and node.key is not None else node.origin


def deduplicate_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return problems without duplicates that several points share."""
    seen = {
        (problem.code, problem.message, str(problem.origin), problem.path): problem
        for problem in reversed(problems)
    }
    return list(reversed(seen.values()))


def dump_recipe_identity(resolved: Resolved) -> str:
    """Dump a recipe without its folder and name."""
    return to_yaml(
        {
            key: value
            for key, value in dump_config(resolved.run).items()
            if key not in NON_IDENTITY_FIELDS
        }
    )


def build_duplicate_point_problem(point: Point, before: Point) -> Problem:
    """Build the warning about a point whose recipe equals that of an earlier point."""
    pairs: list[tuple[Origin | None, Origin | None]] = [
        (point[path].origin, before[path].origin) for path in point if path in before
    ] or [(None, None)]
    own, other = next((pair for pair in pairs if str(pair[0]) != str(pair[1])), pairs[0])
    related = (RelatedLocation(other, "the earlier point"),)
    hint = "remove one of the two values"
    return Problem(
        "conflict",
        "two points have the same recipe, the second one is skipped",
        (),
        own,
        "warning",
        hint=hint,
        related=related,
    )


def select_distinct_builds(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Select one run of each kind that builds the same components.

    The numbers of an optimizer, a schedule or a seed do not change what is built.
    """
    kinds: dict[str, PlannedRun] = {}
    for run in planned:
        data = dump_config(run.resolved.run)
        data["optimizer"] = {
            key: value for key, value in data["optimizer"].items() if not isinstance(value, float)
        }
        kinds.setdefault(
            to_yaml(
                {
                    key: value
                    for key, value in data.items()
                    if key not in (*NON_IDENTITY_FIELDS, *NON_BUILD_SECTIONS)
                }
            ),
            run,
        )
    return list(kinds.values())
