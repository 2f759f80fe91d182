"""`python -m titanrun.worker.show_model`: builds a model without memory, lets the converters rewrite it, and prints its modules as JSON."""

import json
import sys
from typing import Any

from torch import nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import precision_named
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.worker.build_model import build_model
from titanrun.worker.converters import convert, refuse_idle
from titanrun.worker.fake_ranks import as_rank
from titanrun.worker.replacements import fits
from titanrun.worker.try_build import as_data, refusing_at


def main() -> int:
    """Reads {"resolved": text, "world_size": N} from stdin, writes {"modules": [...], "problems": [...]}."""
    request = json.loads(sys.stdin.read())
    recipe = read_resolved_text(request["resolved"])
    answer: dict[str, Any] = {"modules": [], "problems": []}
    try:
        answer["modules"] = modules(recipe, world_size=request["world_size"])
    except ProblemsFound as found:
        answer["problems"] = [as_data(problem) for problem in found.problems]
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def modules(recipe: Recipe, *, world_size: int) -> list[dict[str, Any]]:
    """Every module that has weights of its own, or that a converter looked at: name, class, shapes, and what converters made of it."""
    with refusing_at(("model",)):
        model = build_model(
            recipe, precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
        )
    with refusing_at(("converters",)), as_rank(recipe, 0, world_size=world_size) as meshes:
        conversions = convert(recipe, model, meshes=meshes)
        refuse_idle(recipe, model, conversions)
    taken: dict[str, str] = {}
    left: dict[str, dict[str, str]] = {}
    for converter, conversion in zip(recipe.converters, conversions, strict=True):
        taken |= {
            module_of(name, model): f"{converter.name}: {conversion.kind}"
            for name in conversion.taken
        }
        for name, why in conversion.left.items():
            left.setdefault(name, {})[converter.name] = why
    # a replaced module may have no weights itself, and is listed all the same
    taken |= {
        name: f"replaced: {type(module).__name__}"
        for name, module in model.named_modules()
        if is_replaced(recipe, name)
    }
    return [
        {
            "name": name,
            "class": type(module).__name__,
            "shapes": shapes(module),
            "taken": taken.get(name),
            "left": left.get(name, {}),
        }
        for name, module in model.named_modules()
        if name in taken or name in left or shapes(module)
    ]


def module_of(name: str, model: nn.Module) -> str:
    """The module of that name, or which has the weight of that name: experts are converted by matrices."""
    owner, _, weight = name.rpartition(".")
    parameters = dict(model.get_submodule(owner).named_parameters(recurse=False))
    return owner if weight in parameters else name


def is_replaced(recipe: Recipe, name: str) -> bool:
    """Whether an entry of `replace` means the module."""
    return any(fits(entry.match, name) for entry in recipe.replace or ())


def shapes(module: nn.Module) -> dict[str, list[int]]:
    """The shapes of the weights that the module has itself."""
    return {name: list(weight.shape) for name, weight in module.named_parameters(recurse=False)}


if __name__ == "__main__":
    sys.exit(main())
