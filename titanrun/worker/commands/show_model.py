"""`python -m titanrun.worker.commands.show_model`: print a converted model's modules.

The model is built on the meta device. The output is JSON.
"""

import json
import sys
from typing import Any

from torch import nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.worker.build.apply_converters import check_conversions, convert_model
from titanrun.worker.build.apply_replacements import has_matching_path
from titanrun.worker.build.build_model import build_model
from titanrun.worker.commands.dry_build import attach_problem_path, build_problem_to_dict
from titanrun.worker.simulated_ranks import simulate_rank


def main() -> int:
    """Read {"resolved": text, "world_size": N}, write {"modules": [...], "problems": [...]}.

    Input is stdin, output is stdout.
    """
    request = json.loads(sys.stdin.read())
    recipe = load_resolved_text(request["resolved"])
    answer: dict[str, Any] = {"modules": [], "problems": []}
    try:
        answer["modules"] = describe_modules(recipe, world_size=request["world_size"])
    except ProblemsFound as found:
        answer["problems"] = [build_problem_to_dict(problem) for problem in found.problems]
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def describe_modules(recipe: Recipe, *, world_size: int) -> list[dict[str, Any]]:
    """Return name, class, shapes and conversions of every module with own weights.

    Modules without own weights are listed if a converter converted or skipped them.
    """
    with attach_problem_path(("model",)):
        model = build_model(
            recipe, get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
        )
    with (
        attach_problem_path(("converters",)),
        simulate_rank(recipe, 0, world_size=world_size) as meshes,
    ):
        conversions = convert_model(recipe, model, meshes=meshes)
        check_conversions(recipe, model, conversions)
    converted: dict[str, str] = {}
    skipped: dict[str, dict[str, str]] = {}
    for converter, conversion in zip(recipe.converters, conversions, strict=True):
        converted |= {
            find_owner_module(name, model): f"{converter.name}: {conversion.kind}"
            for name in conversion.converted
        }
        for name, why in conversion.skipped.items():
            skipped.setdefault(name, {})[converter.name] = why
    # replaced modules are listed even if they have no weights
    converted |= {
        name: f"replaced: {type(module).__name__}"
        for name, module in model.named_modules()
        if is_replaced(recipe, name)
    }
    return [
        {
            "name": name,
            "class": type(module).__name__,
            "shapes": get_own_parameter_shapes(module),
            "taken": converted.get(name),
            "left": skipped.get(name, {}),
        }
        for name, module in model.named_modules()
        if name in converted or name in skipped or get_own_parameter_shapes(module)
    ]


def find_owner_module(name: str, model: nn.Module) -> str:
    """Return the module of that name, or the module that has the weight of that name.

    Experts are converted matrix by matrix.
    """
    owner, _, weight = name.rpartition(".")
    parameters = dict(model.get_submodule(owner).named_parameters(recurse=False))
    return owner if weight in parameters else name


def is_replaced(recipe: Recipe, name: str) -> bool:
    """Return whether an entry of `replace` matches the module."""
    return any(has_matching_path(entry.match, name) for entry in recipe.replace or ())


def get_own_parameter_shapes(module: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of the module's own weights, without submodules."""
    return {name: list(weight.shape) for name, weight in module.named_parameters(recurse=False)}


if __name__ == "__main__":
    sys.exit(main())
