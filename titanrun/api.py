"""Entry points of the Python API that need no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from titanrun.config.problems import Problem
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving import resolve, validation_levels
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.runs.run_summary import RunSummary, load_run_summary


def load_recipe(
    file: str | Path,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
) -> Recipe:
    """Resolve a recipe and return its settings, with every default and `auto` filled in.

    Args:
        file: a recipe (.yaml or .toml), or a resolved.yaml.
        overrides: changes as on the command line, such as `training.steps=50`.
        environment: variables for `${env:NAME}`. Defaults to those of the process.

    Raises:
        ProblemsFound: if the recipe has errors, with all of them.
    """
    return resolve_recipe(file, overrides, environment=environment).run


def resolve_recipe(
    file: str | Path,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    ranks: int | None = None,
) -> Resolved:
    """Resolve a recipe and return it with its origins, warnings and the text of resolved.yaml.

    Args:
        file: a recipe (.yaml or .toml), or a resolved.yaml.
        overrides: changes as on the command line.
        environment: variables for `${env:NAME}`. Defaults to those of the process.
        ranks: number of worker processes. Defaults to what the recipe says.

    Raises:
        ProblemsFound: if the recipe has errors, with all of them.
    """
    variables = get_environment() if environment is None else environment
    return resolve.resolve_recipe(str(file), overrides, environment=variables, ranks=ranks)


def validate_recipe(
    file: str | Path,
    overrides: Sequence[str] = (),
    *,
    level: Literal["syntax", "schema", "rules", "environment"] = "rules",
) -> list[Problem]:
    """Return the errors and warnings of a recipe, an empty list if there are none.

    Args:
        file: a recipe (.yaml or .toml), or a resolved.yaml.
        overrides: changes as on the command line.
        level: how much to check; `environment` includes paths, tokenizers and installed packages.
    """
    result = validation_levels.validate_file(
        str(file), overrides, level=level, environment=get_environment()
    )
    return list(result.problems)


def load_run(path: str | Path) -> RunSummary:
    """Load the summary of a run directory: state, step, times, tags and last metrics."""
    return load_run_summary(Path(path))
