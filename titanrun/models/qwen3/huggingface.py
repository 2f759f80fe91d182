"""Conversion of Qwen3 weights to and from transformers' names.

The classes are Qwen3ForCausalLM and Qwen3MoeForCausalLM. Only titanrun has the bias that balances
experts: it is not exported, and zero after an import.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.huggingface_decoder_config import export_decoder_config
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    EXPERT_NAMES,
    FEED_FORWARD_NAMES,
    NORM_NAMES,
    SWIGLU_EXPERT_PARAMETERS,
    export_decoder_weights,
    import_decoder_weights,
)

LAYER_NAMES = {
    **ATTENTION_NAMES,
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    **FEED_FORWARD_NAMES,
    **EXPERT_NAMES,
    **NORM_NAMES,
}
EXPERT_PARAMETERS = SWIGLU_EXPERT_PARAMETERS


def to_huggingface(config: Qwen3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names. A tied head is not exported.

    Raises:
        ProblemsFound: if transformers has no such experts, or names or shapes are not those of the
            model.
    """
    if config.export_problems():
        raise ProblemsFound(config.export_problems())
    return export_decoder_weights(config, state, LAYER_NAMES)


def from_huggingface(config: Qwen3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Qwen3 of transformers under titanrun's names.

    A tied head gets the embedding's matrix.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    return import_decoder_weights(config, state, LAYER_NAMES)


def to_huggingface_config(config: Qwen3Config, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    dense = config.moe is None
    return {
        **export_decoder_config(
            config,
            dtype_name,
            model_type="qwen3" if dense else "qwen3_moe",
            architecture="Qwen3ForCausalLM" if dense else "Qwen3MoeForCausalLM",
        ),
        "intermediate_size": config.feed_forward.hidden_dim,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope.theta,
        "rope_scaling": None,
        "use_sliding_window": False,
        **({} if dense else export_experts_config(config.moe)),
    }


def export_experts_config(moe: Any) -> dict[str, Any]:
    """Return the keys of config.json about experts."""
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.hidden_dim,
        "norm_topk_prob": moe.route_norm,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
