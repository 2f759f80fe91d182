"""Matching of parameters by a recipe's name patterns."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from titanrun.config.problems import Problem
from titanrun.config.suggest import format_word_list

MAX_NAMES_SHOWN = 5


def matches_any_pattern(name: str, patterns: Iterable[str]) -> bool:
    """Return whether any pattern matches the whole name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class ParamGroupMatch(Protocol):
    """Parameter group of a recipe with the patterns of its parameters' names."""

    @property
    def match(self) -> tuple[str, ...]:
        """Patterns of parameter names."""


def find_param_group_problems(
    groups: Sequence[ParamGroupMatch], names: Sequence[str]
) -> list[Problem]:
    """Return problems of `param_groups`: overlapping groups, and patterns without a match."""
    problems = []
    for index, group in enumerate(groups):
        path = ("optimizer", "param_groups", index, "match")
        lost = [
            pattern
            for pattern in group.match
            if not any(matches_any_pattern(name, [pattern]) for name in names)
        ]
        if lost:
            message = (
                f"no parameter is called {format_word_list([repr(pattern) for pattern in lost])}"
            )
            shown = ", ".join(f"'{name}'" for name in names[:MAX_NAMES_SHOWN])
            problems.append(
                Problem("no-effect", message, path, hint=f"parameters are called {shown} ...")
            )
        for number, other in enumerate(groups[:index]):
            both = next(
                (
                    name
                    for name in names
                    if matches_any_pattern(name, other.match)
                    and matches_any_pattern(name, group.match)
                ),
                None,
            )
            if both is not None:
                message = f"'{both}' belongs to param_groups[{number}] already"
                problems.append(
                    Problem(
                        "conflict",
                        message,
                        path,
                        hint="narrow one of the patterns: a parameter belongs to one group",
                    )
                )
    return problems
