"""The points of a sweep: which values are tried together, and where in the file each of them stands."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from titanrun.config.check import check
from titanrun.config.emit import flow
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.config.source import read_source
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import Node, find, plain
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.draws import drawn

SECTIONS = ("grid", "zip", "list", "random")
EXAMPLE = "optimizer.lr: [1.0e-3, 2.0e-3]"
Point = Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file, read: its settings, its place, and its points in order, each the values by path."""

    config: SweepConfig
    file: Path
    points: tuple[Point, ...]

    @property
    def recipe(self) -> str:
        """The recipe's file, from the working directory."""
        return str(self.file.parent / self.config.recipe)

    @property
    def folder(self) -> Path:
        """Where the runs lie."""
        return Path(self.config.folder) if self.config.folder else Path("runs") / self.file.stem


def read_sweep(file: Path) -> Sweep:
    """A sweep file. Raises ProblemsFound with everything that is wrong with it, but not with the recipes of its points."""
    root = read_source(str(file))
    assert isinstance(root.value, dict)
    known = (*SweepConfig.model_fields, *SECTIONS)
    problems = [
        unknown_key(key, node, known) for key, node in root.value.items() if key not in known
    ]
    sections = {name: node for name, node in root.value.items() if name in SECTIONS}
    checked = check(
        SweepConfig,
        replace(
            root,
            value={
                key: node for key, node in root.value.items() if key in SweepConfig.model_fields
            },
        ),
    )
    problems += [
        replace(problem, message=problem.message.replace("the recipe needs", "the sweep needs"))
        for problem in checked.problems
    ]
    if (
        checked.config is not None
        and (about := checked.config.early_stopping) is not None
        and about.name == "median"
        and about.factor
    ):
        node = find(root, ("early_stopping", "factor"))
        help = "leave it out, or write name: halving"
        problems.append(
            Problem(
                "no-effect",
                "median has no factor",
                ("early_stopping", "factor"),
                node and node.origin,
                help=help,
            )
        )
    parts = []
    for name in SECTIONS:
        try:
            parts.append(READERS[name](sections[name]) if name in sections else [{}])
        except ProblemsFound as found:
            problems += found.problems
    if not sections and not problems:
        help = f"write grid, zip, list or random, such as `grid: {{{EXAMPLE}}}`"
        problems.append(
            Problem("missing-key", "the sweep names nothing to try", origin=root.origin, help=help)
        )
    problems += clashes(sections) if not problems else []
    if problems:
        raise ProblemsFound(problems)
    assert checked.config is not None
    points = tuple(
        {path: value for part in chosen for path, value in part.items()}
        for chosen in product(*parts)
    )
    return Sweep(checked.config, file, points)


def unknown_key(key: str, node: Node, known: tuple[str, ...]) -> Problem:
    """The problem of a key that no sweep has."""
    meant = closest(key, known)
    help = (
        f"did you mean '{meant}'?"
        if meant
        else f"a sweep has {listing(known, last='and', most=99)}"
    )
    return Problem(
        "unknown-key",
        f"unknown key '{key}'",
        (key,),
        node.key or node.origin,
        help=help,
        suggestion=meant,
    )


def clashes(sections: Mapping[str, Node]) -> list[Problem]:
    """A path that two sections try."""
    seen: dict[str, str] = {}
    found = []
    for name, node in sections.items():
        for path, value in paths_of(name, node).items():
            if path in seen and seen[path] != name:
                message = f"'{path}' is tried in {seen[path]} already"
                found.append(
                    Problem(
                        "conflict",
                        message,
                        (name, path),
                        value.key or value.origin,
                        help="leave one of the two out",
                    )
                )
            seen.setdefault(path, name)
    return found


def paths_of(name: str, node: Node) -> dict[str, Node]:
    """The paths that a section tries, with one of their values each."""
    if name == "random":
        node = node.value["values"]  # type: ignore[index,call-overload]
    if name == "list":
        return {path: value for item in node.value for path, value in leaves(item)}  # type: ignore[union-attr]
    return dict(leaves(node, are_draws=name == "random"))


def leaves(node: Node, start: str = "", *, are_draws: bool = False) -> Iterator[tuple[str, Node]]:
    """Paths with dots, however deep they are written; what stands at each."""
    assert isinstance(node.value, dict)
    for key, below in node.value.items():
        path = f"{start}.{key}" if start else key
        is_draw = (
            are_draws
            and isinstance(below.value, dict)
            and not any(isinstance(item.value, dict) for item in below.value.values())
        )
        if isinstance(below.value, dict) and below.value and not is_draw:
            yield from leaves(below, path, are_draws=are_draws)
        else:
            yield path, below


def as_mapping(name: str, node: Node) -> None:
    """Raises where a section is no mapping, or an empty one."""
    if not isinstance(node.value, dict) or not node.value:
        raise fail(
            "wrong-type",
            f"{name} maps paths to values",
            path=(name,),
            origin=node.origin,
            help=f"write {EXAMPLE}",
        )


def value_lists(name: str, node: Node) -> dict[str, list[Node]]:
    """The values by path of grid and zip. Raises ProblemsFound."""
    as_mapping(name, node)
    found, problems = {}, []
    for path, values in leaves(node):
        if isinstance(values.value, list) and values.value:
            found[path] = values.value
        else:
            message = f"'{path}' needs a list of the values to try"
            problems.append(
                Problem("wrong-type", message, (name, path), values.origin, help=f"write {EXAMPLE}")
            )
    if problems:
        raise ProblemsFound(problems)
    return found


def read_grid(node: Node) -> list[Point]:
    """Every value with every other."""
    lists = value_lists("grid", node)
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def read_zip(node: Node) -> list[Point]:
    """The first values together, the second ones together, and so on."""
    lists = value_lists("zip", node)
    lengths = {path: len(values) for path, values in lists.items()}
    if len(set(lengths.values())) > 1:
        said = listing([f"'{path}' has {length}" for path, length in lengths.items()], last="and")
        raise fail(
            "conflict",
            f"zip needs as many values of each: {said}",
            path=("zip",),
            origin=node.key or node.origin,
        )
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def read_list(node: Node) -> list[Point]:
    """Points that are written out."""
    if not isinstance(node.value, list) or not node.value:
        raise fail(
            "wrong-type",
            "list holds points, each a mapping of paths to values",
            path=("list",),
            origin=node.origin,
        )
    for item in node.value:
        as_mapping("an item of list", item)
    return [dict(leaves(item)) for item in node.value]


def read_random(node: Node) -> list[Point]:
    """Points that are drawn: the same ones every time."""
    as_mapping("random", node)
    assert isinstance(node.value, dict)
    values = node.value.get("values")
    if values is None:
        raise fail(
            "missing-key",
            "random has no 'values'",
            path=("random",),
            origin=node.origin,
            help="write values: {optimizer.lr: ...}",
        )
    as_mapping("random.values", values)
    return drawn(node, dict(leaves(values, are_draws=True)))


READERS = {"grid": read_grid, "zip": read_zip, "list": read_list, "random": read_random}


def override(path: str, value: Node) -> str:
    """A value as the command line would have it."""
    return f"{path}={flow(plain(value))}"
