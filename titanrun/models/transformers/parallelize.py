"""How a class of transformers is split over tensor-parallel ranks: by the plan that the class ships, in titanrun's roles.

The plan says nothing of norms; they stay whole, and each rank holds the whole residual stream.
"""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from titanrun.config.problems import fail
from titanrun.distributed.tensor_parallel import Plan, Role
from titanrun.models.transformers.architecture import EMBEDDING, OUTPUT, renamed
from titanrun.models.transformers.model import TransformersModel

# what transformers calls the ways to split that are understood here
COLUMNS, ROWS, HEAD, EMBEDDED = "colwise", "rowwise", "colwise_gather_output", "embedding_rowwise"


def tensor_plan(model: TransformersModel) -> Plan:
    """The role of each module with weights, by its name. Raises ProblemsFound for a model that `obstacles` finds some in."""
    found = next(obstacles(model), None)
    if found is not None:
        message = f"{type(model.huggingface).__name__} cannot be split over tensor-parallel ranks: {found}"
        raise fail("conflict", message, path=("parallelism", "tensor_parallel_degree"))
    return dict(roles(model))


def obstacles(model: TransformersModel) -> Iterator[str]:
    """Why the model cannot be split, one reason an item."""
    plan = shipped(model)
    if not plan:
        yield "the class ships no plan for it"
        return
    written = {path for path, _ in model.huggingface.named_modules()} | {
        path for path, _ in model.huggingface.named_parameters()
    }
    used = {line_of(path) for path in written}
    for line, style in plan.items():
        if line in used and style not in (COLUMNS, ROWS, HEAD, EMBEDDED):
            yield f"its plan splits {line} as '{style}', which titanrun does not know"
    for name, value in dropouts(model.huggingface.config):
        yield f"config.json drops values out ({name}: {value}), which the ranks would do differently"
    known = dict(roles(model))
    split_within = {
        name.rpartition(".")[0] for name, role in known.items() if role in (Role.COLUMNS, Role.ROWS)
    } - {""}
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        if name not in known:
            yield f"its plan says nothing of {name}, a {type(module).__name__}"
        elif known[name] is Role.STREAM_NORM and any(
            name.startswith(f"{holder}.") for holder in split_within
        ):
            yield f"{name} works on what is split, and its plan leaves it whole"


def roles(model: TransformersModel) -> Iterator[tuple[str, Role]]:
    """Modules that can be split or kept whole, by name: linear ones and the embedding as the plan says, norms whole."""
    plan = shipped(model)
    splits_output = plan.get(line_of(model.paths[OUTPUT])) == HEAD
    for name, module in model.named_modules():
        style = plan.get(line_of(renamed(model.paths, name).rstrip("."))) if name else None
        if name == OUTPUT and isinstance(module, nn.Linear):
            yield name, Role.OUTPUT if splits_output else Role.STREAM_NORM
        elif name == EMBEDDING and type(module) is nn.Embedding:
            # a tied matrix is split for both in the same way
            is_split = splits_output if model.is_tied else style == EMBEDDED
            yield name, Role.EMBEDDING if is_split else Role.STREAM_NORM
        elif isinstance(module, nn.Linear) and style in (COLUMNS, ROWS):
            yield name, Role.COLUMNS if style == COLUMNS else Role.ROWS
        elif (
            "norm" in type(module).__name__.lower() and not any(module.children()) and style is None
        ):
            yield name, Role.STREAM_NORM


def shares(model: TransformersModel) -> dict[str, int]:
    """What each rank gets an equal part of, by what it is called: attention heads, and the widths of split matrices."""
    config = model.huggingface.config
    heads = {"query heads": "num_attention_heads", "key and value heads": "num_key_value_heads"}
    found = {
        words: count
        for words, name in heads.items()
        if type(count := getattr(config, name, None)) is int
    }
    for name, role in roles(model):
        linear: Any = model.get_submodule(name)
        if role is Role.COLUMNS:
            found[f"outputs of {line_of(name)}"] = linear.out_features
        elif role is Role.ROWS:
            found[f"inputs of {line_of(name)}"] = linear.in_features
    return found


def shipped(model: TransformersModel) -> dict[str, str]:
    """The class's plan: styles by the path of a module or parameter, in which `*` is any number; empty where it has none."""
    return dict(getattr(model.huggingface, "_tp_plan", None) or {})


def line_of(path: str) -> str:
    """The path as plans write it."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def dropouts(config: Any) -> Iterator[tuple[str, float]]:
    """The shares of values that a config drops out while training, by name."""
    for name, value in config.to_dict().items():
        if "drop" in name and "classifier" not in name and isinstance(value, float) and value > 0:
            yield name, value
