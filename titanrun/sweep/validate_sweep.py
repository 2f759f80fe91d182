"""Validation of a sweep file at the levels of `titanrun validate`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from titanrun.config.diagnostics import sort_problems
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.validation_levels import (
    VALIDATION_LEVELS,
    ValidationLevel,
    ValidationResult,
)
from titanrun.sweep.search_points import build_planner, validate_space
from titanrun.sweep.search_space import SearchSpace
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.validate_points import (
    PlannedRun,
    deduplicate_problems,
    select_distinct_builds,
    validate_points,
)

# modules of Optuna's samplers, which it imports when it draws
SAMPLER_PACKAGES = {"cmaes": ("cmaes",), "gp": ("scipy",)}
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def validate_sweep(
    file: str,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    level: ValidationLevel,
    ranks: int | None,
    find_build_problems: Callable[[Resolved], Sequence[Problem]],
) -> ValidationResult:
    """Validate a sweep file, and from level `rules` its points.

    Points of a search are tried at the ends of its space. Level `build` calls `find_build_problems`
    with one run of each kind that builds the same components.
    """
    try:
        runs, problems = find_sweep_runs(file, overrides, environment, level=level, ranks=ranks)
    except ProblemsFound as found:
        return ValidationResult(
            tuple(sort_problems(found.problems)), found.exit_code, is_sweep=True
        )
    if level == "build":
        built = (find_build_problems(run.resolved) for run in select_distinct_builds(runs))
        problems = deduplicate_problems([*problems, *(item for found in built for item in found)])
    code = next((item.exit_code for item in problems if item.severity == "error"), 0)
    resolved = tuple(run.resolved for run in runs)
    return ValidationResult(
        tuple(sort_problems(problems)), code, stage_runs=resolved, is_sweep=True
    )


def find_sweep_runs(
    file: str,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    level: ValidationLevel,
    ranks: int | None,
) -> tuple[list[PlannedRun], list[Problem]]:
    """Return the runs of a sweep, and warnings about them. Raise ProblemsFound with errors."""
    sweep = read_sweep(Path(file))
    depth = VALIDATION_LEVELS.index(level)
    if depth < VALIDATION_LEVELS.index("rules"):
        return [], []
    resolve = partial(
        resolve_recipe,
        ranks=ranks,
        should_check_inputs=depth >= VALIDATION_LEVELS.index("environment"),
    )
    if sweep.search is not None:
        if depth >= VALIDATION_LEVELS.index("environment"):
            check_search_packages(sweep.search)
        return validate_space(build_planner(sweep, overrides, environment, resolve=resolve))
    return validate_points(sweep, overrides, environment, resolve=resolve)


def check_search_packages(space: SearchSpace) -> None:
    """Raise ProblemsFound if what draws the values of a search is not installed."""
    sampler = space.config.sampler
    needed = {"a search": ("optuna", "sklearn"), sampler: SAMPLER_PACKAGES.get(sampler, ())}
    for what, modules in needed.items():
        for module in modules:
            if find_spec(module) is None:
                name = DISTRIBUTIONS.get(module, module)
                raise problem_error(
                    "usage",
                    f"{what} requires {name}, which is not installed",
                    path=("search",),
                    hint='pip install "titanrun[search]"',
                )
