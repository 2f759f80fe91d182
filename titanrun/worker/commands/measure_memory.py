"""`python -m titanrun.worker.commands.measure_memory`: count a rank's weights.

The model is parallelized over simulated ranks.
"""

import json
import sys
from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.dtensor import is_sharded, to_local
from titanrun.distributed.precision import get_precision
from titanrun.distributed.quantized_weights import QuantizedWeight
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.build.build_model import build_model
from titanrun.worker.build.build_parallelism import parallelize_model
from titanrun.worker.commands.dry_build import build_problem_to_dict
from titanrun.worker.simulated_ranks import simulate_rank

# mesh axes along which weights are gathered for compute; along others a rank uses its own shard
GATHERED_AXES = {"fsdp", "efsdp", "dp_replicate"}
Sizes = list[int]


def main() -> int:
    """Read {"resolved": text, "world_size": N} from stdin and write the sizes.

    Write {"embedding": sizes, "layers": [sizes ...], "head": sizes}, or {"problems": [...]} if the
    model cannot be built.
    """
    request = json.loads(sys.stdin.read())
    try:
        answer: dict[str, Any] = measure_rank_memory(
            load_resolved_text(request["resolved"]), request["world_size"]
        )
    except ProblemsFound as found:
        answer = {"problems": [build_problem_to_dict(problem) for problem in found.problems]}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def measure_rank_memory(recipe: Recipe, world_size: int) -> dict[str, Any]:
    """Return the sizes of embedding, layers and head.

    Raises:
        ProblemsFound: the model cannot be built.
    """
    stages = recipe.parallelism.pipeline_parallel_degree
    small = reduce_to_one_stage(omit_computation(recipe))
    precision = get_precision(small.training.dtype, small.training.mixed_precision_param)
    with simulate_rank(small, 0, world_size=world_size // stages) as meshes:
        model = build_model(small, precision)
        convert_model(small, model, meshes=meshes)
        parallelize_model(small, model, meshes=meshes, precision=precision)
        found = measure_layers(model, precision.storage_dtype)
    layers = found["layers"] * (recipe.model.layer_count() // len(found["layers"]))
    return {**found, "layers": layers}


def omit_computation(recipe: Recipe) -> Recipe:
    """Return the recipe without what changes only how parameters are computed with.

    torch.compile, and torchao with the compiler that it loads, take longer to import than all
    else takes.
    """
    data = dump_config(recipe)
    data["compile"] |= {"enable": False}
    data["converters"] = [
        dump_config(converter) for converter in recipe.converters if converter.changes_parameters
    ]
    return type(recipe).model_validate(data)


def reduce_to_one_stage(recipe: Recipe) -> Recipe:
    """Return the recipe of one pipeline stage, with one layer if all layers are identical.

    The size of a layer on a rank does not depend on the number of layers, and thousands of ranks
    take long to simulate.
    """
    data = dump_config(recipe)
    ranks = recipe.parallelism.pipeline_parallel_degree
    data["parallelism"] |= {
        "pipeline_parallel_degree": 1,
        "module_fqns_per_model_part": None,
        "pipeline_parallel_layers_per_stage": None,
    }
    data["training"]["global_batch_size"] = recipe.training.global_batch_size
    if "n_layers" in data["model"] and (has_identical_layers(recipe) or ranks > 1):
        data["model"]["n_layers"] = (
            1 if has_identical_layers(recipe) else recipe.model.layer_count()
        )
    return type(recipe).model_validate(data)


def has_identical_layers(recipe: Recipe) -> bool:
    """Return whether all layers have the same weight shapes.

    Return False if a setting refers to a layer by its number.
    """
    if any(step.isdigit() for entry in recipe.replace or () for step in entry.match.split(".")):
        return False
    if any(
        "layers." in pattern
        for converter in recipe.converters
        for found in converter.name_patterns.values()
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


def measure_layers(model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Return the sizes of embedding, each layer, and everything else (norm, head and so on).

    A tied weight counts once, in the embedding.

    Args:
        model: the model on a rank.
        dtype: storage dtype, of which sizes are multiples.
    """
    seen: set[int] = set()
    count = partial(count_parameter_elements, dtype=dtype, seen=seen)
    # None for models without token input
    table = model.tok_embeddings
    embedding = count(table.parameters() if isinstance(table, nn.Module) else [])
    layers = [count(layer.parameters()) for layer in model.get_submodule("layers").children()]
    return {"embedding": embedding, "layers": layers, "head": count(model.parameters())}


def count_parameter_elements(
    parameters: Iterable[nn.Parameter], *, dtype: torch.dtype, seen: set[int]
) -> Sizes:
    """Count parameter elements in eight ways and add the parameters to `seen`.

    The counts are: of the full parameters, of this rank's shards, of the parts that this rank
    computes with, of the trainable full parameters, of this rank's trainable shards, of this rank's
    shards in the storage dtype `dtype`, of the trainable parts that this rank computes with, and of
    quantized parameters, which every rank keeps whole.
    """
    total = [0] * 8
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            whole, kept, computed, is_trained = (
                parameter.numel(),
                count_local_elements(parameter, dtype),
                count_compute_elements(parameter),
                int(parameter.requires_grad),
            )
            for position, count in enumerate(
                (
                    whole,
                    kept,
                    computed,
                    whole * is_trained,
                    kept * is_trained,
                    kept * is_stored_as(parameter, dtype),
                    computed * is_trained,
                    whole * isinstance(parameter, QuantizedWeight),
                )
            ):
                total[position] += count
    return total


def count_local_elements(parameter: nn.Parameter, dtype: torch.dtype) -> int:
    """Count the elements of this rank's shard.

    A quantized weight, and a frozen one in the compute dtype, count as many elements of the storage
    dtype `dtype` as fit into its bytes.
    """
    if isinstance(parameter, QuantizedWeight):
        return round(parameter.quantized_nbytes / dtype.itemsize)
    return to_local(parameter).nbytes // dtype.itemsize


def is_stored_as(parameter: nn.Parameter, dtype: torch.dtype) -> bool:
    """Return whether a weight is stored in `dtype` and not quantized."""
    return parameter.dtype == dtype and not isinstance(parameter, QuantizedWeight)


def count_compute_elements(parameter: nn.Parameter) -> int:
    """Count the elements that this rank computes with.

    That is the full parameter, except for mesh axes that split the computation too.
    """
    if not is_sharded(parameter):
        return parameter.numel()
    placed: Any = parameter
    names = placed.device_mesh.mesh_dim_names or ()
    splits: list[int] = [
        placed.device_mesh.size(axis)
        for axis, placement in enumerate(placed.placements)
        if not placement.is_replicate() and names[axis] not in GATHERED_AXES
    ]
    return parameter.numel() // prod(splits)


if __name__ == "__main__":
    sys.exit(main())
