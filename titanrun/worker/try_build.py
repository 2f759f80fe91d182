"""`python -m titanrun.worker.try_build`: builds a run on the meta device and prints, as a JSON list, what keeps it from being built."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.distributed.precision import precision_named
from titanrun.recipe.decide import with_steps
from titanrun.recipe.length import DEFAULT_STEPS
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.worker.build_model import build_model, lay_out, refuse_unclaimed, trained
from titanrun.worker.converters import convert, refuse_idle
from titanrun.worker.fake_ranks import as_rank

# the rule under which a component's own refusal is shown
RULE = "can-be-built"


def main() -> int:
    """Reads {"resolved": text of resolved.yaml, "world_size": N} from stdin. 0: the list was printed, empty or not."""
    request = json.loads(sys.stdin.read())
    recipe = read_resolved_text(request["resolved"])
    problems: list[Problem] = []
    try:
        build(recipe, world_size=request["world_size"])
    except ProblemsFound as found:
        problems += found.problems
    sys.stdout.write(json.dumps([as_data(problem) for problem in problems]) + "\n")
    return 0


def build(recipe: Recipe, *, world_size: int) -> None:
    """Builds, in the order of worker/assemble.py, all that needs no data and no memory. Raises ProblemsFound."""
    precision = precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    with refusing_at(("model",)):
        model = build_model(recipe, precision)
    with refusing_at(("parallelism",)), as_rank(recipe, 0, world_size=world_size) as meshes:
        with refusing_at(("converters",)):
            conversions = convert(recipe, model, meshes=meshes)
            refuse_idle(recipe, model, conversions)
        with refusing_at(("optimizer",)):
            refuse_unclaimed(recipe, model)
            recipe.optimizer.builder()(recipe.optimizer, parameters=stand_ins(model))
        lay_out(recipe, model, meshes=meshes, precision=precision)
    if recipe.training.steps is None:
        # only the data knows what the epochs come to; any number shows whether the schedule can be built
        recipe = with_steps(recipe, DEFAULT_STEPS)
    with refusing_at(("lr_scheduler",)):
        recipe.lr_scheduler.builder()(recipe.lr_scheduler)
    with refusing_at(("loss",)):
        recipe.loss.builder()(recipe.loss)


def stand_ins(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The model's parameters in their shapes with one element of memory each: fused optimizers refuse the meta device."""
    return [
        (name, nn.Parameter(torch.zeros(1, dtype=found.dtype).expand(found.shape)))
        for name, found in trained(model)
    ]


@contextmanager
def refusing_at(path: DataPath) -> Iterator[None]:
    """Within the block a refusal is a problem at `path`, unless it names a path of its own."""
    try:
        yield
    except ProblemsFound as found:
        raise ProblemsFound([moved(problem, path) for problem in found.problems]) from None
    except (ValueError, RuntimeError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProblemsFound([Problem("conflict", message, path, rule=RULE)]) from error


def moved(problem: Problem, path: DataPath) -> Problem:
    """The problem with a path."""
    return Problem(
        problem.code,
        problem.message,
        problem.path or path,
        help=problem.help,
        severity=problem.severity,
        rule=problem.rule,
    )


def as_data(problem: Problem) -> dict[str, Any]:
    """What launch/try_build.py makes a problem of again."""
    return {
        "code": problem.code,
        "message": problem.message,
        "path": problem.path,
        "help": problem.help,
        "severity": problem.severity,
        "rule": problem.rule,
    }


if __name__ == "__main__":
    sys.exit(main())
