"""Sweep file: the points to run, and the location of each value in the file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.read_source import read_source
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.config.validate_tree import validate_tree
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.iter_paths import EXAMPLE, Point, check_mapping, iter_path_nodes
from titanrun.sweep.random_search import draw_points
from titanrun.sweep.search_space import SearchSpace, read_search

SECTIONS = ("grid", "zip", "list", "random")
SEARCH = "search"
JOURNAL = "optuna.journal"
SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file: its settings, its path, and its points in order, each as values by path.

    A search has no points: it draws them while it goes on.
    """

    config: SweepConfig
    file: Path
    points: tuple[Point, ...]
    search: SearchSpace | None = None

    @property
    def recipe(self) -> str:
        """Path of the recipe, relative to the working directory."""
        return str(self.file.parent / self.config.recipe)

    @property
    def folder(self) -> Path:
        """Parent folder of the runs."""
        return Path(self.config.folder) if self.config.folder else Path("runs") / self.file.stem

    @property
    def storage(self) -> str:
        """Journal file or database of the search."""
        assert self.search is not None
        return self.search.config.storage or str(self.folder / JOURNAL)

    @property
    def has_database(self) -> bool:
        """Whether the search is in a database, which is for one machine."""
        return self.storage.startswith(SQLITE)


def read_sweep(file: Path) -> Sweep:
    """Read a sweep file. Raise ProblemsFound with all its problems.

    The recipes of its points are not validated here.
    """
    root = read_source(str(file))
    assert isinstance(root.value, dict)
    check_is_sweep(root, file)
    known = (*SweepConfig.model_fields, *SECTIONS, SEARCH)
    problems = [
        build_unknown_sweep_key_problem(key, node, known)
        for key, node in root.value.items()
        if key not in known
    ]
    sections = {name: root.value[name] for name in SECTIONS if name in root.value}
    checked = validate_tree(
        SweepConfig,
        replace(
            root,
            value={
                key: node for key, node in root.value.items() if key in SweepConfig.model_fields
            },
        ),
    )
    problems += checked.problems
    problems += find_pruner_problems(checked.config, root)
    parts = read_sections(sections, problems)
    search = None
    if SEARCH in root.value:
        try:
            search = read_search(root.value[SEARCH])
        except ProblemsFound as found:
            problems += found.problems
        problems += find_combined_search_problems(root.value[SEARCH], sections)
    elif not sections and not problems:
        hint = f"write grid, zip, list, random or search, such as `grid: {{{EXAMPLE}}}`"
        problems.append(
            Problem("missing-key", "the sweep has no values to try", origin=root.origin, hint=hint)
        )
    problems += find_repeated_path_problems(sections) if not problems else []
    if problems:
        raise ProblemsFound(problems)
    assert checked.config is not None
    if search is not None:
        return Sweep(checked.config, file, (), search)
    points = tuple(
        {path: value for part in chosen for path, value in part.items()}
        for chosen in product(*parts)
    )
    return Sweep(checked.config, file, points)


def check_is_sweep(root: Node, file: Path) -> None:
    """Raise one problem if a file is a recipe. Every key of it would be unknown."""
    assert isinstance(root.value, dict)
    first = next((root.value[key] for key in ("model", "training") if key in root.value), None)
    if first is not None and not {"recipe", *SECTIONS, SEARCH} & set(root.value):
        hint = f"titanrun train {file}; a sweep names it by recipe: {file}, and has values to try"
        raise problem_error(
            "file", "this is a recipe, not a sweep", origin=first.key or first.origin, hint=hint
        )


def read_sections(sections: Mapping[str, Node], problems: list[Problem]) -> list[list[Point]]:
    """Return the points of each section, and append the problems."""
    parts: list[list[Point]] = []
    for name, node in sections.items():
        try:
            parts.append(READERS[name](node))
        except ProblemsFound as found:
            problems += found.problems
    return parts


def find_pruner_problems(config: SweepConfig | None, root: Node) -> list[Problem]:
    """Return the problem of a rule of Optuna in a sweep without a search."""
    rule = None if config is None else config.early_stopping
    assert isinstance(root.value, dict)
    if rule is None or not rule.is_pruner or SEARCH in root.value:
        return []
    path = ("early_stopping", "name")
    node = find_node(root, path) or find_node(root, path[:1])
    return [
        Problem(
            "conflict",
            f"{rule.name} is a rule of Optuna, which a sweep without search does not use",
            path,
            None if node is None else node.origin,
            hint="use median or halving, or write the values in a section search",
        )
    ]


def build_unknown_sweep_key_problem(key: str, node: Node, known: tuple[str, ...]) -> Problem:
    """Build the problem of a key that a sweep does not have."""
    meant = find_closest(key, known)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"known keys: {format_word_list(known, conjunction='and', max_words=99)}"
    )
    return Problem(
        "unknown-key",
        f"unknown key '{key}'",
        (key,),
        node.key or node.origin,
        hint=hint,
        suggestion=meant,
    )


def find_combined_search_problems(node: Node, sections: Mapping[str, Node]) -> list[Problem]:
    """Return the problem of a search beside other sections."""
    if not sections:
        return []
    first = next(iter(sections))
    return [
        Problem(
            "conflict",
            f"search draws all values, but {first} lists values too",
            (SEARCH,),
            node.key or node.origin,
            hint=f"remove one of the two, or write the values of {first} as choices",
        )
    ]


def find_repeated_path_problems(sections: Mapping[str, Node]) -> list[Problem]:
    """Return the problems of paths that two sections vary."""
    seen: dict[str, str] = {}
    found = []
    for name, node in sections.items():
        for path, value in get_swept_paths(name, node).items():
            if path in seen and seen[path] != name:
                message = f"'{path}' is already varied in {seen[path]}"
                found.append(
                    Problem(
                        "conflict",
                        message,
                        (name, path),
                        value.key or value.origin,
                        hint="remove one of the two",
                    )
                )
            seen.setdefault(path, name)
    return found


def get_swept_paths(name: str, node: Node) -> dict[str, Node]:
    """Return the paths that a section varies, each with one of its values."""
    if name == "list":
        assert isinstance(node.value, list)
        return {path: value for item in node.value for path, value in iter_path_nodes(item)}
    if name == "random":
        assert isinstance(node.value, dict)
        return dict(iter_path_nodes(node.value["values"], are_draws=True))
    return dict(iter_path_nodes(node))


def read_value_lists(name: str, node: Node) -> dict[str, list[Node]]:
    """Return the values by path of grid and zip. Raise ProblemsFound if they are invalid."""
    check_mapping(name, node)
    found, problems = {}, []
    for path, values in iter_path_nodes(node):
        if isinstance(values.value, list) and values.value:
            # a problem of the path is one of the key, however many values it has
            found[path] = [replace(value, key=values.key) for value in values.value]
        else:
            message = f"'{path}' needs a list of the values to try"
            is_alone = values.value is not None and not isinstance(values.value, list | dict)
            meant = f"{path}: [{to_flow_yaml(values.value)}]" if is_alone else EXAMPLE
            problems.append(
                Problem("wrong-type", message, (name, path), values.origin, hint=f"write {meant}")
            )
    if problems:
        raise ProblemsFound(problems)
    return found


def read_grid(node: Node) -> list[Point]:
    """Return the points that combine every value with every other."""
    lists = read_value_lists("grid", node)
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def read_zip(node: Node) -> list[Point]:
    """Return the points that combine the first values, the second values, and so on."""
    lists = read_value_lists("zip", node)
    lengths = {path: len(values) for path, values in lists.items()}
    if len(set(lengths.values())) > 1:
        said = format_word_list(
            [f"'{path}' has {length}" for path, length in lengths.items()], conjunction="and"
        )
        raise problem_error(
            "conflict",
            f"zip needs the same number of values for each path: {said}",
            path=("zip",),
            origin=node.key or node.origin,
        )
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def read_list(node: Node) -> list[Point]:
    """Return the points that are listed explicitly."""
    if not isinstance(node.value, list) or not node.value:
        raise problem_error(
            "wrong-type",
            "list must contain points, each a mapping of paths to values",
            path=("list",),
            origin=node.origin,
        )
    for item in node.value:
        check_mapping("an item of list", item)
    return [dict(iter_path_nodes(item)) for item in node.value]


def read_random_points(node: Node) -> list[Point]:
    """Return the random points, which are the same every time."""
    check_mapping("random", node)
    assert isinstance(node.value, dict)
    values = node.value.get("values")
    if values is None:
        raise problem_error(
            "missing-key",
            "missing required key 'values' in random",
            path=("random",),
            origin=node.origin,
            hint="write values: {optimizer.lr: ...}",
        )
    check_mapping("random.values", values)
    return [*draw_points(node, dict(iter_path_nodes(values, are_draws=True)))]


READERS = {"grid": read_grid, "zip": read_zip, "list": read_list, "random": read_random_points}


def format_sweep_override(path: str, value: Node) -> str:
    """Format a value as a command-line override."""
    return f"{path}={to_flow_yaml(to_plain_data(value))}"
