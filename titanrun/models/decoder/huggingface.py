"""The weights of a decoder of ingredients under the names of transformers' class that has the same ingredients, and back.

Its modules have the names of the families', whose mappings do the work.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.decoder.config import IngredientsConfig
from titanrun.models.decoder.correspondence import nearest
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.family import family_module
from titanrun.models.shared.huggingface_weights import exported_weights, imported_weights


def to_huggingface(config: IngredientsConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model under transformers' names. A tied head is not exported.

    Raises ProblemsFound where transformers has no such class, and where names or shapes are not those of the model.
    """
    family, module = counterpart(config)
    if turns_as_transformers(config, family):
        return exported_weights(config, state, module.LAYER_NAMES)
    exported: dict[str, Tensor] = module.to_huggingface(family, state)
    return exported


def from_huggingface(config: IngredientsConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model of transformers under titanrun's names. A tied head is the embedding's matrix.

    Raises ProblemsFound where transformers has no such class, and where names or shapes are not those of the model.
    """
    family, module = counterpart(config)
    if turns_as_transformers(config, family):
        return imported_weights(config, state, module.LAYER_NAMES)
    weights: dict[str, Tensor] = module.from_huggingface(family, state)
    return weights


def turns_as_transformers(config: IngredientsConfig, family: ModelConfig) -> bool:
    """Whether it is a Llama whose RoPE turns halves, so that no rows have to be reordered."""
    return isinstance(family, Llama3Config) and config.rope.pairs == "halves"


def huggingface_config(config: IngredientsConfig, dtype_name: str) -> dict[str, Any]:
    """The content of config.json for transformers 4 and 5; `dtype_name` is that of the weights beside it."""
    family, module = counterpart(config)
    content: dict[str, Any] = module.huggingface_config(family, dtype_name)
    return content


def counterpart(config: IngredientsConfig) -> tuple[ModelConfig, ModuleType]:
    """The same model in the config of a family, and how that family's weights are called. Raises ProblemsFound where none has it."""
    name, problems = nearest(config)
    if problems:
        raise ProblemsFound(problems)
    family = config.as_family(name)
    return family, family_module(type(family), "huggingface")
