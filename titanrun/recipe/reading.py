"""Reads what the user wrote, files and overrides, into one tree; what has no meaning in it is told, and reading goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from titanrun.config.arguments import Override, OverridesInPart, parse_overrides
from titanrun.config.compose import compose, is_absent
from titanrun.config.interpolate import interpolate
from titanrun.config.override import apply_overrides
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, fail
from titanrun.config.renames import Renamed, renamed
from titanrun.config.tree import Node, ReadInPart, broken_paths, find, plain
from titanrun.config.wording import SECRET_HELP, SECRET_MESSAGE
from titanrun.recipe import catalogue, menu
from titanrun.recipe.expected import Expected
from titanrun.recipe.length import with_one_length
from titanrun.recipe.plugins import recipe_class, use
from titanrun.recipe.stages import (
    HasStages,
    chosen_stage,
    overrides_of_stage,
    split_stage,
    stages_of,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The tree, the problems of single values, and the paths in it that have no meaning because of them; warnings apart."""

    tree: Node
    problems: tuple[Problem, ...]
    broken: set[DataPath]
    warnings: tuple[Problem, ...] = ()


@dataclass(slots=True)
class Findings:
    """The problems of each step of reading, and what has no meaning because of them; every step goes on with the rest."""

    problems: list[Problem] = field(default_factory=list)
    origins: set[Origin] = field(default_factory=set)
    paths: set[DataPath] = field(default_factory=set)

    def read(self, step: Callable[[], Node]) -> Node:
        """The tree that a step gives, less what is broken in it. Raises ProblemsFound where nothing is left of it."""
        try:
            return step()
        except ReadInPart as part:
            self.problems += part.problems
            self.origins |= part.broken
            return part.root
        except HasStages:
            raise
        except ProblemsFound as found:
            further = [problem for problem in found.problems if problem.origin not in self.origins]
            raise ProblemsFound([*self.problems, *further]) from None

    def parsed(self, arguments: Sequence[str]) -> list[Override]:
        """The overrides that can be read."""
        try:
            return parse_overrides(arguments)
        except OverridesInPart as part:
            self.problems += part.problems
            self.paths |= part.broken
            return part.overrides


def read_tree(file: str, overrides: Sequence[str], environment: Mapping[str, str]) -> Reading:
    """What was written, composed, overridden and interpolated. Raises ProblemsFound where that cannot be done to the end."""
    menu.open_menu()
    findings = Findings()
    refuse_name_of_shipped(split_stage(file)[0])
    whole = findings.read(lambda: compose(split_stage(file)[0], catalogue.shelves()))
    load_listed_plugins(whole)
    composed = findings.read(lambda: chosen_stage(whole, file))
    parsed = overrides_of_stage(findings.parsed(overrides), whole, file)
    overridden = with_one_length(findings.read(lambda: overridden_tree(composed, parsed)))
    load_listed_plugins(overridden)
    after = Expected(plain(overridden))
    tree = findings.read(
        lambda: interpolate(
            overridden,
            environment,
            default_of=after.default_of,
            is_text=after.is_text,
            is_secret=after.is_secret,
        )
    )
    problems = [
        without_secret(problem) if after.is_secret(problem.path) else problem
        for problem in findings.problems
    ]
    today = named_as_today(tree)
    problems += [problem for problem in today.problems if problem.severity == "error"]
    warnings = tuple(problem for problem in today.problems if problem.severity == "warning")
    return Reading(
        today.tree,
        tuple(problems),
        broken_paths(today.tree, findings.origins) | findings.paths,
        warnings,
    )


def stage_ids(file: str) -> list[str]:
    """The stages of a recipe, in order. Raises ProblemsFound where it cannot be read."""
    return list(stages_of(compose(file, catalogue.shelves())))


def refuse_name_of_shipped(file: str) -> None:
    """Stop at the bare name of a recipe that ships, where a file is needed."""
    if is_absent(file) and any(
        file in (entry.name, entry.path.name, entry.path.stem) for entry in catalogue.shipped()
    ):
        raise fail(
            "file",
            f"there is no file {file} here",
            help=f"it ships with titanrun: titanrun cp {file} mine.yaml",
        )


def named_as_today(tree: Node) -> Renamed:
    """The tree with the names that fields have today."""
    return renamed(recipe_class(), tree, plain(tree))


def load_listed_plugins(tree: Node) -> list[Problem]:
    """Load the plug-ins that the recipe lists, before anything is asked about their fields."""
    listed = find(tree, ("plugins",))
    items = listed.value if listed is not None and isinstance(listed.value, list) else []
    return use([item.value for item in items if isinstance(item.value, str)])


def without_secret(problem: Problem) -> Problem:
    """A problem of reading a secret, which must not show what stands there."""
    if problem.origin is None:
        return problem
    origin = problem.origin
    origin.source.hidden.append(
        replace(origin, end_column=len(origin.source.line(origin.line)) + 1)
    )
    if problem.code in ("duplicate-key", "usage"):
        return problem
    return replace(
        problem,
        code="wrong-type",
        message=SECRET_MESSAGE,
        help=SECRET_HELP,
        suggestion=None,
        got=None,
        fix=None,
    )


def read_back(tree: Node) -> Node:
    """The tree of a resolved recipe as it was meant: nothing but its secrets refers to anything. Raises ProblemsFound."""
    menu.open_menu()
    load_listed_plugins(tree)
    expected = Expected(plain(tree))
    return named_as_today(
        interpolate(tree, {}, is_text=expected.is_text, is_secret=expected.is_secret)
    ).tree


def overridden_tree(composed: Node, overrides: Sequence[Override]) -> Node:
    """The tree with the overrides applied."""
    before = Expected(plain(composed))
    return apply_overrides(
        composed,
        overrides,
        is_list=before.is_list,
        is_component=before.is_component,
        default_of=before.default_of,
        has_field=before.has_field,
    )
