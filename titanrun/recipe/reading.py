"""Reads what the user wrote, files and overrides, into one tree; what has no meaning in it is told, and reading goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from titanrun.config.arguments import parse_overrides
from titanrun.config.compose import compose
from titanrun.config.interpolate import interpolate
from titanrun.config.override import apply_overrides
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound
from titanrun.config.tree import Node, ReadInPart, broken_paths, plain
from titanrun.recipe import catalogue, menu
from titanrun.recipe.expected import Expected


@dataclass(frozen=True, slots=True)
class Reading:
    """The tree, the problems of single values, and the paths in it that have no meaning because of them."""

    tree: Node
    problems: tuple[Problem, ...]
    broken: set[DataPath]


def read_tree(file: str, overrides: Sequence[str], environment: Mapping[str, str]) -> Reading:
    """What was written, composed, overridden and interpolated. Raises ProblemsFound where that cannot be done to the end."""
    menu.open_menu()
    problems: tuple[Problem, ...] = ()
    broken: frozenset[Origin] = frozenset()
    try:
        composed = compose(file, catalogue.shelves())
    except ReadInPart as part:
        composed, problems, broken = part.root, part.problems, part.broken
    try:
        tree = changed(composed, overrides, environment)
    except ProblemsFound as found:
        raise ProblemsFound([*problems, *found.problems]) from None
    return Reading(tree, problems, broken_paths(tree, broken))


def changed(composed: Node, overrides: Sequence[str], environment: Mapping[str, str]) -> Node:
    """The tree with the overrides applied and its references replaced."""
    before = Expected(plain(composed))
    overridden = apply_overrides(
        composed,
        parse_overrides(overrides),
        is_list=before.is_list,
        is_component=before.is_component,
        default_of=before.default_of,
        has_field=before.has_field,
    )
    after = Expected(plain(overridden))
    return interpolate(overridden, environment, default_of=after.default_of, is_text=after.is_text)
