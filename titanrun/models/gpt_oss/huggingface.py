"""Conversion of gpt-oss weights to and from transformers' GptOssForCausalLM.

transformers multiplies tokens by the matrices of an expert from the right, so they are transposed.
Only titanrun has the bias that balances experts: it is not exported, and zero after an import.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.huggingface_decoder_config import (
    export_decoder_config,
    export_rope_scaling,
)
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    NORM_NAMES,
    export_decoder_weights,
    import_decoder_weights,
)

MATRICES = {
    "moe.experts.mlp1_weight": "mlp.experts.gate_up_proj",
    "moe.experts.mlp2_weight": "mlp.experts.down_proj",
}
LAYER_NAMES = {
    **ATTENTION_NAMES,
    **{
        ours.replace("weight", "bias"): theirs.replace("weight", "bias")
        for ours, theirs in ATTENTION_NAMES.items()
    },
    "attention.sinks": "self_attn.sinks",
    "moe.router.gate.weight": "mlp.router.weight",
    "moe.router.gate.bias": "mlp.router.bias",
    **MATRICES,
    "moe.experts.mlp1_bias": "mlp.experts.gate_up_proj_bias",
    "moe.experts.mlp2_bias": "mlp.experts.down_proj_bias",
    **NORM_NAMES,
}
EXPERT_PARAMETERS = {theirs: (ours,) for ours, theirs in MATRICES.items()}
# peft does not transpose the adapter of a single expert, which would be necessary here
PEFT_EXPERTS_AT_LEAST = 2


def to_huggingface(config: GptOssConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names. A tied head is not exported.

    Raises:
        ProblemsFound: if transformers has no such experts, or names or shapes are not those of the
            model.
    """
    if config.export_problems():
        raise ProblemsFound(config.export_problems())
    return export_decoder_weights(
        config,
        state,
        LAYER_NAMES,
        transform=lambda name, weight: weight.mT if name.endswith(tuple(MATRICES)) else weight,
    )


def from_huggingface(config: GptOssConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a GptOssForCausalLM under titanrun's names.

    A tied head gets the embedding's matrix.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    transposed = {
        name: tensor.mT if name.endswith(tuple(MATRICES.values())) else tensor
        for name, tensor in state.items()
    }
    weights = import_decoder_weights(config, transposed, LAYER_NAMES)
    return {name: weight.contiguous() for name, weight in weights.items()}


def to_huggingface_config(config: GptOssConfig, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    moe, scaling = unwrap_auto(config.moe), unwrap_auto(config.rope.scaling)
    layer_types = [
        "full_attention" if config.get_window(layer) is None else "sliding_attention"
        for layer in range(unwrap_auto(config.n_layers))
    ]
    return {
        **export_decoder_config(
            config, dtype_name, model_type="gpt_oss", architecture="GptOssForCausalLM"
        ),
        "attention_bias": True,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        # transformers requires a number even if no layer has a window
        "sliding_window": config.sliding_window or 128,
        "layer_types": layer_types,
        "rope_theta": config.rope.theta,
        # transformers' own default is a scaling
        "rope_scaling": export_rope_scaling(scaling) or {"rope_type": "default"},
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "intermediate_size": moe.hidden_dim,
        "swiglu_limit": moe.swiglu_limit,
        "swiglu_alpha": moe.swiglu_alpha,
    }
