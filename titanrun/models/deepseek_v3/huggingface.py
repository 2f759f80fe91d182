"""Conversion of DeepSeek-V3 weights to and from transformers' DeepseekV3ForCausalLM.

transformers rotates neighbors in RoPE here, as titanrun does: no rows are reordered. It always has
the bias that balances experts.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.huggingface_decoder_config import (
    export_decoder_config,
    export_rope_scaling,
)
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    EXPERT_NAMES,
    FEED_FORWARD_NAMES,
    NORM_NAMES,
    SWIGLU_EXPERT_PARAMETERS,
    export_decoder_weights,
    import_decoder_weights,
)

MTP_JOIN_SUFFIX = ".eh_proj.weight"
BIAS = "mlp.gate.e_score_correction_bias"
LAYER_NAMES = {
    "attention.wq.weight": ATTENTION_NAMES["attention.wq.weight"],
    "attention.wq_a.weight": "self_attn.q_a_proj.weight",
    "attention.q_norm.weight": "self_attn.q_a_layernorm.weight",
    "attention.wq_b.weight": "self_attn.q_b_proj.weight",
    "attention.wkv_a.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attention.wkv_b.weight": "self_attn.kv_b_proj.weight",
    "attention.wo.weight": ATTENTION_NAMES["attention.wo.weight"],
    **FEED_FORWARD_NAMES,
    **EXPERT_NAMES,
    "moe.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "moe.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
    "moe.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
    "moe.expert_bias": BIAS,
    **NORM_NAMES,
    "embedding_norm.weight": "enorm.weight",
    "stream_norm.weight": "hnorm.weight",
    "join.weight": "eh_proj.weight",
    "out_norm.weight": "shared_head.norm.weight",
}
# weights that each multi-token prediction layer shares with the model, copied in DeepSeek's
# releases
MTP_SHARED_WEIGHTS = ("embed_tokens.weight", "shared_head.head.weight")
EXPERT_PARAMETERS = SWIGLU_EXPERT_PARAMETERS


def to_huggingface(config: DeepseekV3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names. A tied head is not exported.

    Raises:
        ProblemsFound: if transformers cannot compute this model, or names or shapes are not those
            of the model.
    """
    if config.export_problems():
        raise ProblemsFound(config.export_problems())
    unbiased = {
        name: torch.zeros(unwrap_auto(config.moe.num_experts), dtype=torch.float32)
        for name in get_expert_bias_names(config)
    }
    exported = unbiased | export_decoder_weights(config, state, LAYER_NAMES)
    head = "tok_embeddings.weight" if config.tie_word_embeddings else "output.weight"
    for layer in get_mtp_layer_indices(config):
        shared = zip(MTP_SHARED_WEIGHTS, ("tok_embeddings.weight", head), strict=True)
        exported |= {
            f"model.layers.{layer}.{theirs}": state[ours].clone() for theirs, ours in shared
        }
    return exported


def from_huggingface(config: DeepseekV3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a DeepseekV3ForCausalLM under titanrun's names.

    Multi-token prediction layers that the model does not have are skipped.

    Raises:
        ProblemsFound: if names or shapes are not those of the model, or a model without expert
            biases receives some.
    """
    beyond = get_unused_mtp_prefixes(config, state)
    shared = {
        f"model.layers.{layer}.{theirs}"
        for layer in get_mtp_layer_indices(config)
        for theirs in MTP_SHARED_WEIGHTS
    }
    given = {
        name: tensor
        for name, tensor in state.items()
        if not name.startswith(beyond) and name not in shared
    }
    if config.moe.load_balance_coeff is None:
        biases = [given.pop(name) for name in get_expert_bias_names(config) if name in given]
        if any(bias.count_nonzero() for bias in biases):
            path = ("model", "moe", "load_balance_coeff")
            raise problem_error(
                "checkpoint",
                "these weights use an expert bias, but model.moe.load_balance_coeff is null",
                path=path,
                hint="use 0.001",
            )
    return import_decoder_weights(config, given, LAYER_NAMES)


def get_expert_bias_names(config: DeepseekV3Config) -> list[str]:
    """Return the names of the biases of all layers that have experts."""
    return [
        f"model.layers.{layer}.{BIAS}"
        for layer in range(config.layer_count())
        if config.has_experts(layer)
    ]


def get_mtp_layer_indices(config: DeepseekV3Config) -> range:
    """Return the indices of the model's multi-token prediction layers."""
    return range(unwrap_auto(config.n_layers), config.layer_count())


def get_unused_mtp_prefixes(
    config: DeepseekV3Config, state: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Return name prefixes of multi-token prediction layers that the model lacks.

    DeepSeek's releases keep these layers after the last one. Only they join the stream with an
    embedding. Other layers after the last belong to a larger model.
    """
    joining = (
        name.removesuffix(MTP_JOIN_SUFFIX) for name in state if name.endswith(MTP_JOIN_SUFFIX)
    )
    own = {f"model.layers.{layer}" for layer in range(config.layer_count())}
    return tuple(f"{layer}." for layer in joining if layer not in own)


def to_huggingface_config(config: DeepseekV3Config, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    moe = config.moe
    return {
        **export_decoder_config(
            config, dtype_name, model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM"
        ),
        "intermediate_size": config.feed_forward.hidden_dim,
        "num_key_value_heads": config.n_heads,
        "first_k_dense_replace": config.n_dense_layers,
        "moe_layer_freq": 1,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "rope_interleave": True,
        "rope_theta": config.rope.theta,
        "rope_scaling": export_rope_scaling(unwrap_auto(config.rope.scaling)),
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": moe.num_shared_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.hidden_dim,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": moe.route_norm,
        "routed_scaling_factor": moe.route_scale,
        "n_group": moe.num_expert_groups or 1,
        "topk_group": moe.num_limited_groups or 1,
        "num_nextn_predict_layers": config.num_mtp_layers,
    }
