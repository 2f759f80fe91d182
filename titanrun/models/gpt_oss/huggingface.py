"""gpt-oss weights under the names of transformers' GptOssForCausalLM, and back.

transformers multiplies tokens by the matrices of an expert from the right, so they are transposed. The bias that balances experts is
titanrun's own: it is not exported, and zero after an import.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.shared.huggingface_decoder import decoder_mapping, scaling_mapping
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    NORM_NAMES,
    exported_weights,
    imported_weights,
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
# peft turns no adapter of a single expert, and here it would have to
PEFT_EXPERTS_AT_LEAST = 2


def to_huggingface(config: GptOssConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model under transformers' names. A tied head is not exported.

    Raises ProblemsFound where transformers has no such experts, and where names or shapes are not those of the model.
    """
    if config.export_problems():
        raise ProblemsFound(config.export_problems())
    return exported_weights(
        config,
        state,
        LAYER_NAMES,
        change=lambda name, weight: weight.mT if name.endswith(tuple(MATRICES)) else weight,
    )


def from_huggingface(config: GptOssConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a GptOssForCausalLM under titanrun's names. A tied head is the embedding's matrix.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    turned = {
        name: tensor.mT if name.endswith(tuple(MATRICES.values())) else tensor
        for name, tensor in state.items()
    }
    weights = imported_weights(config, turned, LAYER_NAMES)
    return {name: weight.contiguous() for name, weight in weights.items()}


def huggingface_config(config: GptOssConfig, dtype_name: str) -> dict[str, Any]:
    """The content of config.json for transformers 4 and 5; `dtype_name` is that of the weights beside it."""
    moe, scaling = config.moe, config.rope.scaling
    in_turns = [
        "full_attention" if config.window(layer) is None else "sliding_attention"
        for layer in range(config.n_layers)
    ]
    return {
        **decoder_mapping(
            config, dtype_name, model_type="gpt_oss", architecture="GptOssForCausalLM"
        ),
        "attention_bias": True,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        # transformers wants a number, also where no layer has a window
        "sliding_window": config.sliding_window or 128,
        "layer_types": in_turns,
        "rope_theta": config.rope.theta,
        # transformers' own default is a scaling
        "rope_scaling": scaling_mapping(scaling) or {"rope_type": "default"},
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "intermediate_size": moe.hidden_dim,
        "swiglu_limit": moe.swiglu_limit,
        "swiglu_alpha": moe.swiglu_alpha,
    }
