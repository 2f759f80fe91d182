"""A component's problems know their place in its own config; here they learn where that config stands in the recipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from titanrun.config.problems import DataPath, ProblemsFound


@contextmanager
def placed(path: DataPath) -> Iterator[None]:
    """Within the block, problems raised are moved below `path`."""
    try:
        yield
    except ProblemsFound as error:
        raise ProblemsFound(
            [replace(problem, path=(*path, *problem.path)) for problem in error.problems]
        ) from error
