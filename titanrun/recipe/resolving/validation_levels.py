"""Validation levels of a recipe.

Each level includes the previous ones. The last one starts a process that builds the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from titanrun.config.diagnostics import sort_problems
from titanrun.config.override_parser import parse_overrides
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import Node, PartialReadError
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.hub_models import is_missing_model
from titanrun.recipe.resolving.multi_stage import StageRequiredError, select_stage, split_stage
from titanrun.recipe.resolving.read_recipe import (
    SweepFileError,
    check_is_recipe,
    compose_recipe,
    read_tree,
)
from titanrun.recipe.resolving.resolve import (
    Resolved,
    attach_origin,
    find_schema_problems,
    resolve_recipe,
)
from titanrun.recipe.resolving.stage_sequence import build_stage_sequence, find_stage_problems
from titanrun.recipe.rules.model import find_unsupported_features
from titanrun.recipe.rules.tensor_parallel import (
    class_splits_over_tp,
    heads_divide_over_tp,
    widths_divide_over_tp,
)

ValidationLevel = Literal["syntax", "schema", "rules", "environment", "build"]
VALIDATION_LEVELS: tuple[ValidationLevel, ...] = get_args(ValidationLevel)

# sizes that a refused --nproc is compared with
MAX_TRIED_RANKS = 4096


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Result of one level: problems in file order, exit code, and the readable recipe."""

    problems: tuple[Problem, ...]
    exit_code: int = 0
    tree: Node | None = None
    resolved: Resolved | None = None
    stages: tuple[str, ...] = ()
    """Stages of a recipe of which one must be named; nothing was validated then."""
    stage_runs: tuple[Resolved, ...] = ()
    """Runs of the stages, if several were merged."""
    is_sweep: bool = False
    """Whether the file is a sweep."""


def validate_file(
    file: str,
    overrides: Sequence[str],
    *,
    level: ValidationLevel,
    environment: Mapping[str, str],
    ranks: int | None = None,
) -> ValidationResult:
    """Validate the recipe in `file` up to `level`.

    Level `build` is validated as `environment`; `add_build_problems` does the rest.
    """
    try:
        if level == "syntax":
            parse_overrides(overrides)
            whole = compose_recipe(split_stage(file)[0])
            check_is_recipe(whole, file)
            return ValidationResult((), tree=select_stage(whole, file))
        if level == "schema":
            return validate_schema(file, overrides, environment)
        resolved = resolve_recipe(
            file,
            overrides,
            environment=environment,
            should_check_inputs=level in ("environment", "build"),
            ranks=ranks,
        )
    except StageRequiredError as staged:
        return ValidationResult((), tree=staged.tree, stages=staged.stage_ids)
    except SweepFileError as sweep:
        return ValidationResult(tuple(sweep.problems), sweep.exit_code, is_sweep=True)
    except ProblemsFound as found:
        tree = found.root if isinstance(found, PartialReadError) else None
        if level == "rules" and all(is_missing_model(problem) for problem in found.problems):
            # this level needs no network, and all that can be checked without the model is right
            warnings = [replace(problem, severity="warning") for problem in found.problems]
            return ValidationResult(tuple(warnings), tree=tree)
        return ValidationResult(tuple(sort_problems(found.problems)), found.exit_code, tree)
    return ValidationResult(
        tuple(sort_problems(resolved.warnings)), tree=resolved.tree, resolved=resolved
    )


def merge_stage_results(
    whole: ValidationResult, stages: Sequence[ValidationResult]
) -> ValidationResult:
    """Merge the results of the stages of a recipe and add the problems between stages.

    A problem that several stages share is reported once.
    """
    runs = [stage.resolved for stage in stages if stage.resolved is not None]
    between = []
    if whole.tree is not None and len(runs) == len(stages):
        between = find_stage_problems(build_stage_sequence(whole.stages, runs, whole.tree))
    found = [*(problem for stage in stages for problem in stage.problems), *between]
    once = {(problem.label, problem.message, str(problem.origin)): problem for problem in found}
    code = next((problem.exit_code for problem in found if problem.severity == "error"), 0)
    problems = tuple(sort_problems(once.values()))
    return ValidationResult(problems, code, whole.tree, stage_runs=tuple(runs))


def validate_schema(
    file: str, overrides: Sequence[str], environment: Mapping[str, str]
) -> ValidationResult:
    """Validate single keys and values. Raise ProblemsFound if any is wrong."""
    reading = read_tree(file, overrides, environment)
    found = find_schema_problems(reading)
    if reading.problems or found:
        raise ProblemsFound([*reading.warnings, *reading.problems, *found])
    return ValidationResult(reading.warnings, tree=reading.tree)


def add_build_problems(
    result: ValidationResult, find_build_problems: Callable[[Resolved], Sequence[Problem]]
) -> ValidationResult:
    """Return the result with the problems of building the run, each with its origin.

    Nothing is built if there are errors already.
    """
    if result.resolved is None:
        return result
    resolved = result.resolved
    found = [attach_recipe_origin(problem, resolved) for problem in find_build_problems(resolved)]
    code = next((problem.exit_code for problem in found if problem.severity == "error"), 0)
    return replace(
        result,
        problems=tuple(sort_problems([*result.problems, *found])),
        exit_code=result.exit_code or code,
    )


def attach_recipe_origin(problem: Problem, resolved: Resolved) -> Problem:
    """Return a problem that only has a path with its origin in the recipe."""
    return attach_origin(problem, resolved.tree)


def check_tensor_parallel_split(recipe: Recipe, count: int) -> None:
    """Raise a usage problem if `count` processes cannot split the model.

    Call it before any of the processes starts.
    """
    if recipe.model.modality == "images" or "tensor parallelism" in find_unsupported_features(
        recipe.model
    ):
        raise problem_error(
            "usage",
            f"model '{recipe.model.name}' cannot be split over processes",
            hint="omit --nproc",
        )
    obstacle = find_split_obstacle(recipe, count)
    if obstacle is not None:
        fitting = [
            str(size)
            for size in range(1, min(count, MAX_TRIED_RANKS))
            if find_split_obstacle(recipe, size) is None
        ]
        raise problem_error(
            "usage",
            f"--nproc {count}: {obstacle}",
            hint=f"use an --nproc of {format_word_list(fitting)}",
        )


def find_split_obstacle(recipe: Recipe, degree: int) -> str | None:
    """Return why the model cannot be split evenly over `degree` tensor-parallel ranks.

    Return None if it can.
    """
    parallelism = type(recipe.parallelism).model_validate({"tensor_parallel_degree": degree})
    split = type(recipe).model_validate({**dict(recipe), "parallelism": parallelism})
    checks = (heads_divide_over_tp, widths_divide_over_tp, class_splits_over_tp)
    return next((finding.message for check in checks for finding in check(split)), None)
