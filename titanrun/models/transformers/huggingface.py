"""Weights under the names that transformers saves, and back. How files differ from modules is transformers' own knowledge."""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import fail
from titanrun.distributed.meta_device import on_meta_device
from titanrun.models.shared.huggingface_weights import check_state
from titanrun.models.transformers.architecture import (
    causal_class,
    first_line,
    huggingface_configuration,
    parts_of,
    renamed,
)
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.model import TransformersModel


def to_huggingface(config: TransformersConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model as save_pretrained writes them. A tied head is not exported.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    with on_meta_device():
        model = TransformersModel(config, seq_len=1)
    check_state({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, state)
    own = {
        name: tensor
        for name, tensor in state.items()
        if not (model.is_tied and name == "output.weight")
    }
    theirs = {renamed(model.paths, name): tensor for name, tensor in own.items()}
    saved = import_module("transformers.core_model_loading").revert_weight_conversion(
        model.huggingface, theirs
    )
    return {name: tensor.contiguous() for name, tensor in saved.items()}


def from_huggingface(config: TransformersConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in files of transformers under titanrun's names, in fp32. A tied head is the embedding's matrix.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    configuration = huggingface_configuration(config)
    found = causal_class(configuration)
    # a bar for what takes no time, in the log of every rank
    import_module("transformers.utils.logging").disable_progress_bar()
    try:
        loaded, report = found.from_pretrained(
            None,
            config=configuration,
            state_dict=dict(state),
            dtype=torch.float32,
            output_loading_info=True,
        )
    except RuntimeError as error:
        raise fail(
            "checkpoint", f"{found.__name__} does not take these weights: {first_line(error)}"
        ) from error
    faults = {
        "missing": report["missing_keys"],
        "unknown to it": report["unexpected_keys"],
        "of other sizes": report["mismatched_keys"],
    }
    for what, names in faults.items():
        if names:
            named = sorted(str(name if isinstance(name, str) else name[0]) for name in names)
            message = f"weights of {found.__name__} are {what}: {named[0]}" + (
                f" and {len(named) - 1} more" if len(named) > 1 else ""
            )
            raise fail("checkpoint", message, help="check that the folder belongs to this model")
    parts = {name: loaded.get_submodule(path) for name, path in parts_of(loaded).items()}
    return {
        f"{part}.{name}": tensor.detach()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


def huggingface_config(config: TransformersConfig, dtype_name: str) -> dict[str, Any]:
    """The content of config.json; `dtype_name` is that of the weights beside it."""
    configuration = huggingface_configuration(config)
    written: dict[str, Any] = json.loads(configuration.to_json_string(use_diff=False))
    name = causal_class(configuration).__name__
    return written | {"use_cache": True, "architectures": [name], "dtype": dtype_name}
