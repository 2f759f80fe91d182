"""Every point of a sweep, checked before the first one trains; what is wrong points into the sweep file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from titanrun.config.base import dump
from titanrun.config.emit import emit
from titanrun.config.problems import Origin, Problem, ProblemsFound, Related
from titanrun.config.source import read_source
from titanrun.config.tree import Node, find, plain
from titanrun.recipe.reading import read_tree
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.sweep.filters import lookup, read_filter
from titanrun.sweep.names import point_names
from titanrun.sweep.points import Point, Sweep, override

# where a run is and what it is called, which makes it no other run
OWN = ("name", "description", "dump_folder")
BUILDS_NOTHING = ("lr_scheduler", "debug", "metrics", "checkpoint", "guard")


@dataclass(frozen=True, slots=True)
class Planned:
    """A run of a sweep: its name and folder, the values it tries by path, what `train` is told, and the recipe that comes of it."""

    name: str
    folder: Path
    values: Mapping[str, object]
    overrides: tuple[str, ...]
    resolved: Resolved

    @property
    def arguments(self) -> list[str]:
        """What `titanrun train` is told after the recipe."""
        return [*self.overrides, f"dump_folder={self.folder}"]


def examined(
    sweep: Sweep, changes: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[Planned], list[Problem]]:
    """The runs of a sweep, and what is to be said about them. `changes` are for all runs, from the command line.

    Raises ProblemsFound with what is wrong with any of them, each mistake once.
    """
    given = {named_path(text) for text in changes}
    common = [*(text for text in sweep.config.overrides if named_path(text) not in given), *changes]
    shared = places_of(sweep, "overrides", sweep.config.overrides)
    points = kept(sweep, common, environment)
    if not points:
        raise ProblemsFound(
            [Problem("usage", "no point of the sweep is left", help="loosen its filters")]
        )
    found, problems = [], list[Problem]()
    for point in points:
        own = {override(path, node): node for path, node in point.items()}
        try:
            resolved = resolve(
                sweep.recipe, [*common, *own], environment=environment, check_inputs=True
            )
        except ProblemsFound as error:
            problems += [placed(problem, shared | own) for problem in error.problems]
        else:
            problems += [placed(problem, shared | own) for problem in resolved.warnings]
            found.append((point, (*common, *own), resolved))
    problems = each_once(problems)
    if any(problem.severity == "error" for problem in problems):
        raise ProblemsFound(problems)
    texts = [recipe_text(resolved) for _, _, resolved in found]
    first = [texts.index(text) for text in texts]
    problems += [
        repeat(found[at][0], found[before][0]) for at, before in enumerate(first) if at != before
    ]
    problems = each_once(problems)
    different = [case for at, case in enumerate(found) if first[at] == at]
    values = [{path: plain(node) for path, node in point.items()} for point, _, _ in different]
    named = zip(point_names(values), values, different, strict=True)
    return [
        Planned(name, sweep.folder / name, tried, words, resolved)
        for name, tried, (_, words, resolved) in named
    ], problems


def kept(sweep: Sweep, common: Sequence[str], environment: Mapping[str, str]) -> list[Point]:
    """The points that all filters let through, the first of them where there is a most."""
    points = list(sweep.points)
    if sweep.config.filters:
        filters = [
            read_filter(text, node.origin)
            for text, node in places_of(sweep, "filters", sweep.config.filters).items()
        ]
        recipe = plain(read_tree(sweep.recipe, common, environment).tree)
        data = [({path: plain(node) for path, node in point.items()}, point) for point in points]
        points = [
            point
            for values, point in data
            if all(wanted.holds(lookup(values, recipe, wanted.origin)) for wanted in filters)
        ]
    return points[: sweep.config.max_runs]


def named_path(text: str) -> str:
    """The path that an override changes: the command line's takes the place of the file's."""
    return re.split(r"[=+!]|-=", text, maxsplit=1)[0]


def places_of(sweep: Sweep, key: str, texts: Sequence[str]) -> dict[str, Node]:
    """The texts of a list in the sweep file with the place of each."""
    node = find(read_source(str(sweep.file)), (key,))
    items = node.value if node is not None and isinstance(node.value, list) else []
    return dict(zip(texts, items, strict=True))


def placed(problem: Problem, places: Mapping[str, Node]) -> Problem:
    """A problem of a value that the sweep gives, at its place in the sweep file."""
    related = tuple(
        replace(item, origin=in_file(item.origin, places, is_key=False)) for item in problem.related
    )
    return replace(
        problem,
        origin=in_file(problem.origin, places, is_key=problem.code == "unknown-key"),
        related=related,
        fix=None,
    )


def in_file(origin: Origin | None, places: Mapping[str, Node], *, is_key: bool) -> Origin | None:
    """Where a value of the sweep stands; any other place as it is."""
    if origin is None or origin.source.kind != "override" or origin.source.text not in places:
        return origin
    node = places[origin.source.text]
    return node.key if is_key and node.key is not None else node.origin


def each_once(problems: Sequence[Problem]) -> list[Problem]:
    """Problems without those that several points share."""
    seen = {
        (problem.code, problem.message, str(problem.origin), problem.path): problem
        for problem in reversed(problems)
    }
    return list(reversed(seen.values()))


def recipe_text(resolved: Resolved) -> str:
    """What is trained, without where and under which name."""
    return emit({key: value for key, value in dump(resolved.run).items() if key not in OWN})


def repeat(point: Point, before: Point) -> Problem:
    """The warning about a point that is the same recipe as an earlier one."""
    pairs = [(point[path].origin, before[path].origin) for path in point if path in before] or [
        (None, None)
    ]
    own, other = next((pair for pair in pairs if str(pair[0]) != str(pair[1])), pairs[0])
    related = (Related(other, "the other one"),)
    help = "take one of the two values out"
    return Problem(
        "conflict",
        "two points are the same recipe; the second one is left out",
        (),
        own,
        "warning",
        help=help,
        related=related,
    )


def built_once(planned: Sequence[Planned]) -> list[Planned]:
    """One run of each kind that is built alike: the numbers of an optimizer, a schedule or a seed build nothing else."""
    kinds: dict[str, Planned] = {}
    for run in planned:
        data = dump(run.resolved.run)
        data["optimizer"] = {
            key: value for key, value in data["optimizer"].items() if not isinstance(value, float)
        }
        kinds.setdefault(
            emit({key: value for key, value in data.items() if key not in (*OWN, *BUILDS_NOTHING)}),
            run,
        )
    return list(kinds.values())
