"""Which parameters a recipe's patterns mean, by name alone."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from titanrun.config.problems import Problem
from titanrun.config.suggest import listing

SHOWN = 5


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether any pattern fits the whole name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Claim(Protocol):
    """A group of a recipe: the patterns of its parameters' names."""

    @property
    def match(self) -> tuple[str, ...]: ...


def claim_problems(claims: Sequence[Claim], names: Sequence[str]) -> list[Problem]:
    """What is wrong with the `param_groups` of an optimizer over these parameters: two claim one, or a pattern claims none."""
    problems = []
    for index, group in enumerate(claims):
        path = ("optimizer", "param_groups", index, "match")
        lost = [
            pattern
            for pattern in group.match
            if not any(matches(name, [pattern]) for name in names)
        ]
        if lost:
            message = f"no parameter is called {listing([repr(pattern) for pattern in lost])}"
            shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
            problems.append(
                Problem("no-effect", message, path, help=f"parameters are called {shown} ...")
            )
        for number, other in enumerate(claims[:index]):
            both = next(
                (
                    name
                    for name in names
                    if matches(name, other.match) and matches(name, group.match)
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
                        help="narrow one of the patterns: a parameter belongs to one group",
                    )
                )
    return problems
