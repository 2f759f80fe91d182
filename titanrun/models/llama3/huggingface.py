"""Conversion of Llama 3 weights to and from transformers' LlamaForCausalLM.

In RoPE transformers rotates the halves of a head, (x_p, x_p+H/2), where titanrun rotates neighbors,
(x_2p, x_2p+1): the rows of wq and wk are reordered within each head.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.huggingface_decoder_config import (
    export_decoder_config,
    export_rope_scaling,
)
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    FEED_FORWARD_NAMES,
    NORM_NAMES,
    export_decoder_weights,
    import_decoder_weights,
)

LAYER_NAMES = {**ATTENTION_NAMES, **FEED_FORWARD_NAMES, **NORM_NAMES}


def to_huggingface(config: Llama3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names. A tied head is not exported.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """

    def permute(name: str, weight: Tensor) -> Tensor:
        return permute_pairs_to_halves(weight, get_rotated_head_count(config, name))

    return export_decoder_weights(config, state, LAYER_NAMES, transform=permute)


def from_huggingface(config: Llama3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a LlamaForCausalLM under titanrun's names.

    A tied head gets the embedding's matrix.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """

    def permute(name: str, weight: Tensor) -> Tensor:
        return permute_halves_to_pairs(weight, get_rotated_head_count(config, name))

    return import_decoder_weights(config, state, LAYER_NAMES, transform=permute)


def get_rotated_head_count(config: Llama3Config, name: str) -> int | None:
    """Return the number of heads of the matrix `name` if RoPE rotates its output, else None."""
    if name.endswith(".wq.weight"):
        return unwrap_auto(config.n_heads)
    return unwrap_auto(config.n_kv_heads) if name.endswith(".wk.weight") else None


def permute_pairs_to_halves(weight: Tensor, n_heads: int | None) -> Tensor:
    """Move rows 2p and 2p+1 of each head to p and p + H/2."""
    if n_heads is None:
        return weight
    return weight.reshape(n_heads, -1, 2, weight.size(1)).transpose(1, 2).reshape(weight.shape)


def permute_halves_to_pairs(weight: Tensor, n_heads: int | None) -> Tensor:
    """Move rows p and p + H/2 of each head to 2p and 2p+1."""
    if n_heads is None:
        return weight
    return weight.reshape(n_heads, 2, -1, weight.size(1)).transpose(1, 2).reshape(weight.shape)


def to_huggingface_config(config: Llama3Config, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    return {
        **export_decoder_config(
            config, dtype_name, model_type="llama", architecture="LlamaForCausalLM"
        ),
        "intermediate_size": config.feed_forward.hidden_dim,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope.theta,
        "rope_scaling": export_rope_scaling(unwrap_auto(config.rope.scaling)),
        "mlp_bias": False,
    }
