"""`python -m titanrun.worker.measure_parts`: lays a model out over ranks that are not there, and prints what one of them would hold."""

import json
import sys
from collections.abc import Iterable
from math import prod
from typing import Any

from torch import nn

from titanrun.config.base import dump
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.packed import Packed
from titanrun.distributed.precision import precision_named
from titanrun.distributed.shards import is_split, own_part
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.worker.build_model import build_model, lay_out
from titanrun.worker.converters import convert
from titanrun.worker.fake_ranks import as_rank
from titanrun.worker.try_build import as_data

# mesh axes along which weights are gathered to compute; along the others a rank computes with its own part
GATHERED_AXES = {"fsdp", "efsdp", "dp_replicate"}
Sizes = list[int]


def main() -> int:
    """Reads {"resolved": text, "world_size": N} from stdin, writes {"embedding": sizes, "layers": [sizes ...], "head": sizes}, or
    {"problems": [...]} of a model that cannot be built."""
    request = json.loads(sys.stdin.read())
    try:
        answer: dict[str, Any] = parts_of_a_rank(
            read_resolved_text(request["resolved"]), request["world_size"]
        )
    except ProblemsFound as found:
        answer = {"problems": [as_data(problem) for problem in found.problems]}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def parts_of_a_rank(recipe: Recipe, world_size: int) -> dict[str, Any]:
    """Sizes of embedding, layers and head. Raises ProblemsFound for a model that cannot be built."""
    stages = recipe.parallelism.pipeline_parallel_degree
    small = of_one_stage(recipe)
    precision = precision_named(small.training.dtype, small.training.mixed_precision_param)
    with as_rank(small, 0, world_size=world_size // stages) as meshes:
        model = build_model(small, precision)
        convert(small, model, meshes=meshes)
        lay_out(small, model, meshes=meshes, precision=precision)
        found = measured(model)
    layers = found["layers"] * (recipe.model.layer_count() // len(found["layers"]))
    return {**found, "layers": layers}


def of_one_stage(recipe: Recipe) -> Recipe:
    """The run of one pipeline stage with a single layer, where all layers are alike: what a rank keeps of a layer does not depend on
    how many there are, and thousands of ranks take long to lay out."""
    data = dump(recipe)
    ranks = recipe.parallelism.pipeline_parallel_degree
    data["parallelism"] |= {
        "pipeline_parallel_degree": 1,
        "module_fqns_per_model_part": None,
        "pipeline_parallel_layers_per_stage": None,
    }
    data["training"]["global_batch_size"] = recipe.training.global_batch_size
    if "n_layers" in data["model"] and (are_alike(recipe) or ranks > 1):
        data["model"]["n_layers"] = 1 if are_alike(recipe) else recipe.model.layer_count()
    return type(recipe).model_validate(data)


def are_alike(recipe: Recipe) -> bool:
    """Whether all layers have the same weights in the same shapes, and nobody means one of them by its number."""
    if any(step.isdigit() for entry in recipe.replace or () for step in entry.match.split(".")):
        return False
    if any(
        "layers." in pattern
        for converter in recipe.converters
        for found in converter.patterns.values()
        for pattern in found
    ):
        return False
    layers: dict[str, dict[str, Any]] = {}
    for name, shape in recipe.model.parameter_shapes().items():
        first, _, rest = name.partition(".")
        if first == "layers":
            index, _, inner = rest.partition(".")
            layers.setdefault(index, {})[inner] = shape
    return len({json.dumps(layer) for layer in layers.values()}) == 1


def measured(model: nn.Module) -> dict[str, Any]:
    """The sizes of the embedding, of each layer, and of all the rest together: norm, head, and what else a model has. A matrix that two
    share counts once, in the embedding."""
    seen: set[int] = set()
    embedding = sizes(
        [] if model.tok_embeddings is None else model.tok_embeddings.parameters(), seen
    )
    layers = [sizes(layer.parameters(), seen) for layer in model.layers.children()]
    return {"embedding": embedding, "layers": layers, "head": sizes(model.parameters(), seen)}


def sizes(parameters: Iterable[nn.Parameter], seen: set[int]) -> Sizes:
    """Elements of the whole, of what this rank keeps, and of what it computes with; and those of the first two that are trained."""
    total = [0, 0, 0, 0, 0]
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            whole, kept, is_trained = (
                parameter.numel(),
                kept_of(parameter),
                int(parameter.requires_grad),
            )
            for position, count in enumerate(
                (whole, kept, gathered(parameter), whole * is_trained, kept * is_trained)
            ):
                total[position] += count
    return total


def kept_of(parameter: nn.Parameter) -> int:
    """Elements that this rank keeps; of a packed matrix as many as would take its bytes."""
    if isinstance(parameter, Packed):
        return round(parameter.held_bytes / parameter.element_size())
    return own_part(parameter).numel()


def gathered(parameter: nn.Parameter) -> int:
    """Elements that this rank computes with: the whole, but for axes that split the computation too."""
    if not is_split(parameter):
        return parameter.numel()
    placed: Any = parameter
    names = placed.device_mesh.mesh_dim_names or ()
    splits = [
        placed.device_mesh.size(axis)
        for axis, placement in enumerate(placed.placements)
        if not placement.is_replicate() and names[axis] not in GATHERED_AXES
    ]
    return parameter.numel() // prod(splits)


if __name__ == "__main__":
    sys.exit(main())
