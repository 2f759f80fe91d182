"""Conversion of custom decoder weights to and from the names of transformers.

The class is the one that has the same parts. The modules are named as in the families, whose
mappings are used.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.decoder.config import CustomDecoderConfig
from titanrun.models.decoder.hf_mapping_config import find_nearest_family
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.huggingface_weights import (
    export_decoder_weights,
    import_decoder_weights,
)
from titanrun.models.shared.spec.family import load_family_module


def to_huggingface(config: CustomDecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names. A tied head is not exported.

    Raises:
        ProblemsFound: if transformers has no such class, or names or shapes are not those of the
            model.
    """
    family, module = get_family_counterpart(config)
    if uses_transformers_rope_layout(config, family):
        return export_decoder_weights(config, state, module.LAYER_NAMES)
    exported: dict[str, Tensor] = module.to_huggingface(family, state)
    return exported


def from_huggingface(config: CustomDecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a transformers model under titanrun's names.

    A tied head gets the embedding's matrix.

    Raises:
        ProblemsFound: if transformers has no such class, or names or shapes are not those of the
            model.
    """
    family, module = get_family_counterpart(config)
    if uses_transformers_rope_layout(config, family):
        return import_decoder_weights(config, state, module.LAYER_NAMES)
    weights: dict[str, Tensor] = module.from_huggingface(family, state)
    return weights


def uses_transformers_rope_layout(config: CustomDecoderConfig, family: ModelConfig) -> bool:
    """Return whether the model is a Llama whose RoPE rotates halves.

    Then no rows have to be reordered.
    """
    return isinstance(family, Llama3Config) and config.rope.pairs == "halves"


def to_huggingface_config(config: CustomDecoderConfig, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    family, module = get_family_counterpart(config)
    content: dict[str, Any] = module.to_huggingface_config(family, dtype_name)
    return content


def get_family_counterpart(config: CustomDecoderConfig) -> tuple[ModelConfig, ModuleType]:
    """Return the same model in the config of a family, and that family's huggingface module.

    Raises:
        ProblemsFound: if no family has all parts.
    """
    name, problems = find_nearest_family(config)
    if problems:
        raise ProblemsFound(problems)
    family = config.to_family_config(name)
    return family, load_family_module(type(family), "huggingface")
