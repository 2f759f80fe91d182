"""From a file and overrides to a run: read, compose, override, interpolate, check, decide, apply the rules."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from titanrun.config import registry
from titanrun.config.base import dump
from titanrun.config.check import check
from titanrun.config.interpolate import escaped
from titanrun.config.problems import DataPath, Problem, ProblemsFound, SourceText, fail
from titanrun.config.secrets import secrets, unset_secrets
from titanrun.config.signature import check_signature, signed
from titanrun.config.source import read_source, read_text
from titanrun.config.tree import Node, find, nearest, path_text, without
from titanrun.config.wording import word_value_error
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.flavors import NO_SIZES, flavor_names
from titanrun.recipe import menu
from titanrun.recipe.decide import decide
from titanrun.recipe.dump_folder import obstacles
from titanrun.recipe.plugins import recipe_class
from titanrun.recipe.reading import Reading, load_listed_plugins, read_back, read_tree
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import apply_rules
from titanrun.recipe.synonyms import SAME_MEANING, SYNONYMS, with_hints

REQUIRED: tuple[DataPath, ...] = (
    ("model",),
    ("model", "name"),
    ("training",),
    ("training", "dataset"),
    ("training", "dataset", "name"),
)
DATASET: DataPath = ("training", "dataset")
MODEL: DataPath = ("model",)
FLAVOR: DataPath = (*MODEL, "flavor")
RECIPE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Case:
    """What a recipe is resolved for: the file it is named after, whether its inputs are looked at, and the ranks it is to run on.

    `machine_ranks` are those that the machine decides on where the recipe leaves it to the machine.
    """

    file: str
    check_inputs: bool = False
    ranks: int | None = None
    machine_ranks: int | None = None

    def ranks_of(self, recipe: Recipe) -> int | None:
        """The ranks: as asked for, else as the recipe says, else as the machine decides; None where nothing does."""
        asked = recipe.launch.ranks if self.ranks is None else self.ranks
        if asked is not None or self.machine_ranks is None:
            return asked
        return recipe.launch.nodes * (1 if recipe.device == "cpu" else self.machine_ranks)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run: the recipe as written, the same with every `auto` decided, the tree with the origins, warnings, the ranks if known."""

    recipe: Recipe
    run: Recipe
    tree: Node
    warnings: tuple[Problem, ...] = ()
    ranks: int | None = None

    @property
    def text(self) -> str:
        """The bytes of resolved.yaml."""
        return signed(written(self.run, dump(self.run)))


def written(run: Recipe, data: dict[str, Any]) -> dict[str, Any]:
    """Plain data of a run, or of a shorter recipe for it, as it stands in a file: texts escaped, secrets as references."""
    escaped_data: dict[str, Any] = escaped(data, {path for path, _ in secrets(run)})
    return escaped_data


def resolve(
    file: str,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    check_inputs: bool = False,
    ranks: int | None = None,
    machine_ranks: int | None = None,
) -> Resolved:
    """The run that `file` with `overrides` describes. Raises ProblemsFound with everything that is wrong.

    `check_inputs` adds the rules of level environment: paths, tokenizers, installed packages. `ranks` are the processes it is to
    run on, whatever the recipe says; `machine_ranks` those where it says `launch.nproc_per_node: auto` and a GPU may be used.
    """
    case = Case(file, check_inputs, ranks, machine_ranks)
    reading = read_tree(file, overrides, environment)
    tree, problems = reading.tree, [*edited_by_hand(file, reading.tree), *reading.warnings]
    if reading.problems:
        raise ProblemsFound([*problems, *reading.problems, *problems_beside(reading, case)])
    try:
        recipe, run, found = examine(tree, tree, case)
    except ProblemsFound as error:
        raise ProblemsFound(
            [*problems, *error.problems, *further_problems(tree, error.problems, set(), case)]
        ) from None
    problems += found
    if check_inputs:
        problems += [
            placed(problem, tree)
            for problem in (*unset_secrets(run, environment), *obstacles(recipe.dump_folder))
        ]
    if any(problem.severity == "error" for problem in problems):
        raise ProblemsFound(problems)
    return Resolved(recipe, run, tree, tuple(problems), case.ranks_of(recipe))


def examine(
    tree: Node, written: Node, case: Case, touched: Collection[DataPath] = ()
) -> tuple[Recipe, Recipe, list[Problem]]:
    """The recipe, the run, and what the rules find. `written` is the whole tree, of which `tree` may be the sound part: what rules say
    about the rest, `touched`, is left out."""
    recipe = check_tree(tree)
    ranks = case.ranks_of(recipe)
    run = decided(recipe, tree, case.file, ranks)
    menu.load_rules()
    found = apply_rules(run, written, "rules", ranks=ranks, beside=touched)
    return (
        recipe,
        run,
        found
        + (apply_rules(run, written, "environment", beside=touched) if case.check_inputs else []),
    )


def problems_beside(reading: Reading, case: Case) -> list[Problem]:
    """What else is wrong with a recipe in which some values could not be read."""
    found: list[Problem] = []
    try:
        check_tree(reading.tree)
    except ProblemsFound as error:
        found = [problem for problem in error.problems if not is_follow_up(problem, reading.broken)]
    return found + further_problems(reading.tree, [*reading.problems, *found], reading.broken, case)


def further_problems(
    tree: Node, known: Sequence[Problem], broken: set[DataPath], case: Case
) -> list[Problem]:
    """What the rules find in the sound part of a recipe that has errors; nothing that the errors, or what is `broken`, may have
    caused."""
    further: list[Problem] = []
    touched = {path[:-1] if path[-1] == "name" else path for path in broken}
    fresh = list(known)
    while fresh and not any(is_fatal(problem) for problem in fresh):
        touched |= {path for problem in fresh for path in touched_by(problem)}
        try:
            _, _, found = examine(with_stand_in(tree, touched), tree, case, touched)
        except ProblemsFound as error:
            fresh = [problem for problem in error.problems if not is_follow_up(problem, touched)]
            further += fresh
        else:
            return further + [problem for problem in found if not is_follow_up(problem, touched)]
    return further


def with_stand_in(tree: Node, touched: Collection[DataPath]) -> Node:
    """The sound part of a tree; in the place of broken data or sizes of the model some that exist, so that the rest can be judged."""
    sound, written, families = (
        with_some_data(without(tree, touched), touched),
        find(tree, MODEL),
        registry.choices(ModelConfig),
    )
    if (
        MODEL not in touched
        or written is None
        or not isinstance(written.value, dict)
        or not isinstance(sound.value, dict)
    ):
        return sound
    name = written.value.get("name")
    if name is None or not isinstance(name.value, str) or name.value not in families:
        return sound
    family = families[name.value]
    assert issubclass(family, ModelConfig)
    kept = {
        key: node
        for key, node in written.value.items()
        if key in NO_SIZES and (*MODEL, key) not in touched
    }
    flavor = replace(name, value=flavor_names(family)[0])
    return replace(
        sound,
        value={
            **sound.value,
            "model": replace(written, value={**kept, "name": name, "flavor": flavor}),
        },
    )


def with_some_data(sound: Node, touched: Collection[DataPath]) -> Node:
    """The tree with the tiny corpus where the dataset was broken."""
    training = find(sound, DATASET[:-1])
    if (
        DATASET not in touched
        or training is None
        or not isinstance(training.value, dict)
        or not isinstance(sound.value, dict)
    ):
        return sound
    data = Node("tiny", training.origin)
    return replace(
        sound,
        value={
            **sound.value,
            "training": replace(training, value={**training.value, "dataset": data}),
        },
    )


def is_fatal(problem: Problem) -> bool:
    """Whether nothing sound remains: a required section is missing or beyond reading."""
    if is_misspelt_argument(problem):
        return False
    if problem.path[:2] == DATASET and problem.code != "missing-key":
        return False
    return (
        len(problem.path) == 0
        or problem.path[0] in ("version", "plugins")
        or problem.path in REQUIRED
    )


def is_misspelt_argument(problem: Problem) -> bool:
    """Whether a problem is that of an argument which names no path: the recipe is as sound without it."""
    return problem.code == "usage" and not problem.path


def touched_by(problem: Problem) -> list[DataPath]:
    """The path to leave out, and what it may have been meant for. A component without a name or a required key goes whole."""
    path = problem.path
    if not path:
        return []
    if FLAVOR in (path, (*path[:-1], problem.suggestion)):  # every size follows from it
        return [MODEL]
    if problem.code == "missing-key" or path[-1] == "name":
        return [path[:-1]]
    return (
        [path, (*path[:-1], problem.suggestion)]
        if problem.code == "unknown-key" and problem.suggestion
        else [path]
    )


def is_follow_up(problem: Problem, touched: set[DataPath]) -> bool:
    """Whether a problem is about something that was left out."""
    paths = [problem.path, *(related.path for related in problem.related)]
    return any(path[: len(gone)] == gone for path in paths for gone in touched)


def check_tree(tree: Node) -> Recipe:
    """The recipe as a config. Raises ProblemsFound."""
    check_version(tree)
    problems = [placed(problem, tree) for problem in load_listed_plugins(tree)]
    checked = check(recipe_class(), tree, synonyms=SYNONYMS, same_meaning=SAME_MEANING)
    if checked.config is None or problems:
        raise ProblemsFound([*problems, *with_hints(checked.problems, tree)])
    return checked.config


def check_version(tree: Node) -> None:
    """Stop at a recipe of another version: nothing else in it can be judged."""
    node = find(tree, ("version",))
    if node is not None and type(node.value) is int and node.value != RECIPE_VERSION:
        message = (
            f"this recipe has version {node.value}, this titanrun reads version {RECIPE_VERSION}"
        )
        help = "update titanrun" if node.value > RECIPE_VERSION else f"write {RECIPE_VERSION}"
        raise fail("version", message, path=("version",), origin=node.origin, help=help)


def decided(recipe: Recipe, tree: Node, file: str, ranks: int | None) -> Recipe:
    """The recipe with every `auto` decided."""
    try:
        return type(recipe).model_validate(decide(recipe, file=file, ranks=ranks))
    except ProblemsFound as error:
        problems = list(error.problems)
    except ValidationError as error:
        problems = [beyond_range(item) for item in error.errors(include_url=False)]
    raise ProblemsFound([placed(problem, tree) for problem in problems])


def beyond_range(error: Any) -> Problem:
    """The problem of a value that nobody wrote: it follows from others, and its own field does not take it."""
    path: DataPath = tuple(error["loc"])
    wording = word_value_error(error["type"], error.get("ctx") or {}, error["input"])
    message = f"{path_text(path)} follows from other values, but {wording.message}"
    return Problem(
        "out-of-range",
        message,
        path,
        help=f"write {path_text(path)}, or change what it follows from",
        got=error["input"],
    )


def placed(problem: Problem, tree: Node) -> Problem:
    """A problem that knows its path only, with the origin of that path."""
    if problem.origin is not None:
        return problem
    node, found = nearest(tree, problem.path)
    origin = node.origin if found == problem.path else node.key or node.origin
    return replace(problem, origin=origin)


def edited_by_hand(file: str, tree: Node) -> list[Problem]:
    """A warning where a resolved recipe no longer matches the checksum in its header."""
    if check_signature(tree.origin.source.text) != "changed":
        return []
    message = f"{file} was edited after it was written: its body no longer matches the checksum in its first line"
    return [
        Problem(
            "version",
            message,
            (),
            None,
            severity="warning",
            help="remove the first line to make it a recipe of your own",
        )
    ]


def read_resolved(path: Path) -> Recipe:
    """The run in a resolved.yaml. Raises ProblemsFound."""
    return check_tree(read_back(read_source(str(path))))


def read_resolved_text(text: str) -> Recipe:
    """The run in the text of a resolved.yaml. Raises ProblemsFound."""
    return check_tree(read_back(read_text(SourceText("resolved.yaml", text), "yaml")))
