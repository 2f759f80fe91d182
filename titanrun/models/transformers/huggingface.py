"""Conversion of weights to and from the names that transformers saves.

transformers itself knows how files differ from modules.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.distributed.meta_device import init_on_meta_device
from titanrun.models.shared.huggingface_weights import check_state_dict
from titanrun.models.transformers.architecture import (
    build_transformers_config,
    get_causal_lm_class,
    get_first_sentence,
    get_part_paths,
    to_transformers_name,
)
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.model import TransformersModel


def to_huggingface(config: TransformersConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model as save_pretrained writes them.

    A tied head is not exported.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    with init_on_meta_device():
        model = TransformersModel(config, seq_len=1)
    check_state_dict(
        {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, state
    )
    own = {
        name: tensor
        for name, tensor in state.items()
        if not (model.is_tied and name == "output.weight")
    }
    theirs = {to_transformers_name(model.part_paths, name): tensor for name, tensor in own.items()}
    saved = import_module("transformers.core_model_loading").revert_weight_conversion(
        model.huggingface_model, theirs
    )
    return {name: tensor.contiguous() for name, tensor in saved.items()}


def from_huggingface(config: TransformersConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in files of transformers under titanrun's names, in fp32.

    A tied head gets the embedding's matrix.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    configuration = build_transformers_config(config)
    found = get_causal_lm_class(configuration)
    # the bar would be in the log of every rank, for work that takes no time
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
        raise problem_error(
            "checkpoint",
            f"{found.__name__} does not accept these weights: {get_first_sentence(error)}",
        ) from error
    faults = {
        "missing": report["missing_keys"],
        "unknown": report["unexpected_keys"],
        "of other shapes": report["mismatched_keys"],
    }
    for fault, names in faults.items():
        if names:
            named = sorted(str(name if isinstance(name, str) else name[0]) for name in names)
            message = f"weights of {found.__name__} are {fault}: {named[0]}" + (
                f" and {len(named) - 1} more" if len(named) > 1 else ""
            )
            raise problem_error(
                "checkpoint", message, hint="check that the folder belongs to this model"
            )
    parts = {name: loaded.get_submodule(path) for name, path in get_part_paths(loaded).items()}
    return {
        f"{part}.{name}": tensor.detach()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


def to_huggingface_config(config: TransformersConfig, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    configuration = build_transformers_config(config)
    written: dict[str, Any] = json.loads(configuration.to_json_string(use_diff=False))
    name = get_causal_lm_class(configuration).__name__
    return written | {"use_cache": True, "architectures": [name], "dtype": dtype_name}
