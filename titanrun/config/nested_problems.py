"""Relocation of a component's problems from its own config into the recipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from titanrun.config.problems import DataPath, ProblemsFound


@contextmanager
def nest_problems(path: DataPath) -> Iterator[None]:
    """Move problems raised within the block below `path`, unless their path is absolute."""
    try:
        yield
    except ProblemsFound as error:
        raise ProblemsFound(
            [
                problem if problem.is_absolute else replace(problem, path=(*path, *problem.path))
                for problem in error.problems
            ]
        ) from error
