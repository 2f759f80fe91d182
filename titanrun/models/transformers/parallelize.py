"""Tensor-parallel plan of a transformers class, converted from the plan that it ships.

The shipped plan does not contain norms. They stay whole, and each rank holds the whole residual
stream.
"""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from titanrun.config.problems import problem_error
from titanrun.distributed.tensor_parallel import TPPlan, TPRole
from titanrun.models.transformers.architecture import EMBEDDING, OUTPUT, to_transformers_name
from titanrun.models.transformers.model import TransformersModel

# names of the supported ways to split in transformers
COLUMNS, ROWS, HEAD, EMBEDDED = "colwise", "rowwise", "colwise_gather_output", "embedding_rowwise"


def build_tensor_plan(model: TransformersModel) -> TPPlan:
    """Return the role of each module with weights, by its name.

    Raises:
        ProblemsFound: if `iter_split_obstacles` finds an obstacle.
    """
    found = next(iter_split_obstacles(model), None)
    if found is not None:
        message = (
            f"{type(model.huggingface_model).__name__} cannot be split over tensor-parallel "
            f"ranks: {found}"
        )
        raise problem_error("conflict", message, path=("parallelism", "tensor_parallel_degree"))
    return dict(iter_tp_roles(model))


def iter_split_obstacles(model: TransformersModel) -> Iterator[str]:
    """Yield the reasons why the model cannot be split."""
    plan = get_shipped_plan(model)
    if not plan:
        yield "the class has no tensor-parallel plan"
        return
    written = {path for path, _ in model.huggingface_model.named_modules()} | {
        path for path, _ in model.huggingface_model.named_parameters()
    }
    used = {to_plan_pattern(path) for path in written}
    for line, style in plan.items():
        if line in used and style not in (COLUMNS, ROWS, HEAD, EMBEDDED):
            yield f"its plan splits {line} as '{style}', which titanrun does not support"
    for name, value in iter_dropouts(model.huggingface_model.config):
        yield f"config.json sets dropout ({name}: {value}), which would differ between the ranks"
    known = dict(iter_tp_roles(model))
    split_within = {
        name.rpartition(".")[0]
        for name, role in known.items()
        if role in (TPRole.COLWISE, TPRole.ROWWISE)
    } - {""}
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        if name not in known:
            yield f"its plan does not contain {name}, a {type(module).__name__}"
        elif known[name] is TPRole.RESIDUAL_NORM and any(
            name.startswith(f"{holder}.") for holder in split_within
        ):
            yield f"{name} processes split activations, but its plan does not split it"


def iter_tp_roles(model: TransformersModel) -> Iterator[tuple[str, TPRole]]:
    """Yield the role of each module that can be split or kept whole, by name.

    Linear modules and the embedding follow the plan, norms stay whole.
    """
    plan = get_shipped_plan(model)
    splits_output = plan.get(to_plan_pattern(model.part_paths[OUTPUT])) == HEAD
    for name, module in model.named_modules():
        style = (
            plan.get(to_plan_pattern(to_transformers_name(model.part_paths, name).rstrip(".")))
            if name
            else None
        )
        if name == OUTPUT and isinstance(module, nn.Linear):
            yield name, TPRole.OUTPUT if splits_output else TPRole.RESIDUAL_NORM
        elif name == EMBEDDING and type(module) is nn.Embedding:
            # a tied matrix is split in the same way for both
            is_split = splits_output if model.is_tied else style == EMBEDDED
            yield name, TPRole.EMBEDDING if is_split else TPRole.RESIDUAL_NORM
        elif isinstance(module, nn.Linear) and style in (COLUMNS, ROWS):
            yield name, TPRole.COLWISE if style == COLUMNS else TPRole.ROWWISE
        elif (
            "norm" in type(module).__name__.lower() and not any(module.children()) and style is None
        ):
            yield name, TPRole.RESIDUAL_NORM


def get_split_sizes(model: TransformersModel) -> dict[str, int]:
    """Return the sizes that ranks split equally, by their description.

    These are attention heads, and the widths of split matrices.
    """
    config = model.huggingface_model.config
    heads = {"query heads": "num_attention_heads", "key and value heads": "num_key_value_heads"}
    found = {
        words: count
        for words, name in heads.items()
        if type(count := getattr(config, name, None)) is int
    }
    for name, role in iter_tp_roles(model):
        linear: Any = model.get_submodule(name)
        if role is TPRole.COLWISE:
            found[f"outputs of {to_plan_pattern(name)}"] = linear.out_features
        elif role is TPRole.ROWWISE:
            found[f"inputs of {to_plan_pattern(name)}"] = linear.in_features
    return found


def get_shipped_plan(model: TransformersModel) -> dict[str, str]:
    """Return the class's plan, {} if it has none.

    It contains styles by the path of a module or parameter, in which `*` is any number.
    """
    return dict(getattr(model.huggingface_model, "_tp_plan", None) or {})


def to_plan_pattern(path: str) -> str:
    """Return the path as plans write it."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def iter_dropouts(config: Any) -> Iterator[tuple[str, float]]:
    """Yield the dropout rates of a config by name."""
    for name, value in config.to_dict().items():
        if "drop" in name and "classifier" not in name and isinstance(value, float) and value > 0:
            yield name, value
