"""Llama 3 weights under the names of transformers' LlamaForCausalLM, and back.

transformers turns the halves of a head in RoPE, (x_p, x_p+H/2), where titanrun turns neighbours, (x_2p, x_2p+1): the rows of wq
and wk are reordered within each head.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.huggingface_decoder import decoder_mapping, scaling_mapping
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    FEED_FORWARD_NAMES,
    NORM_NAMES,
    exported_weights,
    imported_weights,
)

LAYER_NAMES = {**ATTENTION_NAMES, **FEED_FORWARD_NAMES, **NORM_NAMES}


def to_huggingface(config: Llama3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model under transformers' names. A tied head is not exported.

    Raises ProblemsFound where names or shapes are not those of the model.
    """

    def turned(name: str, weight: Tensor) -> Tensor:
        return pairs_to_halves(weight, heads_of(config, name))

    return exported_weights(config, state, LAYER_NAMES, change=turned)


def from_huggingface(config: Llama3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a LlamaForCausalLM under titanrun's names. A tied head is the embedding's matrix.

    Raises ProblemsFound where names or shapes are not those of the model.
    """

    def turned(name: str, weight: Tensor) -> Tensor:
        return halves_to_pairs(weight, heads_of(config, name))

    return imported_weights(config, state, LAYER_NAMES, change=turned)


def heads_of(config: Llama3Config, name: str) -> int | None:
    """Number of heads in the rows of the matrix `name`, if RoPE turns what it makes."""
    if name.endswith(".wq.weight"):
        return config.n_heads
    return config.n_kv_heads if name.endswith(".wk.weight") else None


def pairs_to_halves(weight: Tensor, n_heads: int | None) -> Tensor:
    """Rows 2p and 2p+1 of each head become rows p and p + H/2."""
    if n_heads is None:
        return weight
    return weight.reshape(n_heads, -1, 2, weight.size(1)).transpose(1, 2).reshape(weight.shape)


def halves_to_pairs(weight: Tensor, n_heads: int | None) -> Tensor:
    """Rows p and p + H/2 of each head become rows 2p and 2p+1."""
    if n_heads is None:
        return weight
    return weight.reshape(n_heads, 2, -1, weight.size(1)).transpose(1, 2).reshape(weight.shape)


def huggingface_config(config: Llama3Config, dtype_name: str) -> dict[str, Any]:
    """The content of config.json for transformers 4 and 5; `dtype_name` is that of the weights beside it."""
    return {
        **decoder_mapping(config, dtype_name, model_type="llama", architecture="LlamaForCausalLM"),
        "intermediate_size": config.feed_forward.hidden_dim,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling_mapping(config.rope.scaling),
        "mlp_bias": False,
    }
