"""`python -m titanrun.worker.commands.dry_build`: build a run on the meta device.

Print the problems found as a JSON list.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.resolving.resolve_auto import fill_steps
from titanrun.recipe.resolving.run_length import DEFAULT_STEPS
from titanrun.worker.build.apply_converters import check_conversions, convert_model
from titanrun.worker.build.build_model import (
    build_model,
    check_param_groups,
    named_trainable_parameters,
)
from titanrun.worker.build.build_parallelism import parallelize_model
from titanrun.worker.simulated_ranks import simulate_rank
from titanrun.worker.weights.end_token_rows import find_untrained_end_row

# the rule of errors raised by components
BUILD_RULE = "can-be-built"


def main() -> int:
    """Read {"resolved": text of resolved.yaml, "world_size": N} from stdin and print the list.

    Return 0, also if the list is empty.
    """
    request = json.loads(sys.stdin.read())
    recipe = load_resolved_text(request["resolved"])
    problems: list[Problem] = []
    try:
        dry_build(recipe, world_size=request["world_size"])
        row = find_untrained_end_row(recipe)
        problems += [] if row is None else [row]
    except ProblemsFound as found:
        problems += found.problems
    sys.stdout.write(json.dumps([build_problem_to_dict(problem) for problem in problems]) + "\n")
    return 0


def dry_build(recipe: Recipe, *, world_size: int) -> None:
    """Build everything that needs no data and no memory, in the order of a real start.

    Raises:
        ProblemsFound: something cannot be built.
    """
    precision = get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    with attach_problem_path(("model",)):
        model = build_model(recipe, precision)
    with (
        attach_problem_path(("parallelism",)),
        simulate_rank(recipe, 0, world_size=world_size) as meshes,
    ):
        with attach_problem_path(("converters",)):
            conversions = convert_model(recipe, model, meshes=meshes)
            check_conversions(recipe, model, conversions)
        with attach_problem_path(("optimizer",)):
            check_param_groups(recipe, model)
            recipe.optimizer.load_builder()(
                recipe.optimizer, parameters=create_stand_in_parameters(model)
            )
        parallelize_model(recipe, model, meshes=meshes, precision=precision)
    if recipe.training.steps is None:
        # the steps depend on the data, but any number shows whether the schedule can be built
        recipe = fill_steps(recipe, DEFAULT_STEPS)
    with attach_problem_path(("lr_scheduler",)):
        recipe.lr_scheduler.load_builder()(recipe.lr_scheduler)
    with attach_problem_path(("loss",)):
        recipe.loss.load_builder()(recipe.loss)


def create_stand_in_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return parameters of the model's shapes with one element of memory each.

    Fused optimizers do not support the meta device.
    """
    return [
        (name, nn.Parameter(torch.zeros(1, dtype=found.dtype).expand(found.shape)))
        for name, found in named_trainable_parameters(model)
    ]


@contextmanager
def attach_problem_path(path: DataPath) -> Iterator[None]:
    """Add `path` to problems and errors raised in the block, unless a problem has a path."""
    try:
        yield
    except ProblemsFound as found:
        raise ProblemsFound(
            [set_default_path(problem, path) for problem in found.problems]
        ) from None
    except (ValueError, RuntimeError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProblemsFound([Problem("conflict", message, path, rule=BUILD_RULE)]) from error


def set_default_path(problem: Problem, path: DataPath) -> Problem:
    """Return the problem with a path."""
    return Problem(
        problem.code,
        problem.message,
        problem.path or path,
        hint=problem.hint,
        severity=problem.severity,
        rule=problem.rule,
    )


def build_problem_to_dict(problem: Problem) -> dict[str, Any]:
    """Return plain data that launch/worker_query.py converts back to a problem."""
    return {
        "code": problem.code,
        "message": problem.message,
        "path": problem.path,
        "help": problem.hint,
        "severity": problem.severity,
        "rule": problem.rule,
    }


if __name__ == "__main__":
    sys.exit(main())
