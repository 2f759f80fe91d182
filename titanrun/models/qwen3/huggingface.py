"""Qwen3 weights under the names of transformers' Qwen3ForCausalLM and Qwen3MoeForCausalLM, and back.

On disk transformers keeps each expert's matrices apart, where titanrun stacks those of a layer. The bias that balances experts is
titanrun's own: it is not exported, and zero after an import.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.huggingface_weights import check_state, huggingface_name, without_tied_head

LAYER_NAMES = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "moe.router.gate.weight": "mlp.gate.weight",
    "moe.experts.w1": "mlp.experts.{}.gate_proj.weight",
    "moe.experts.w2": "mlp.experts.{}.down_proj.weight",
    "moe.experts.w3": "mlp.experts.{}.up_proj.weight",
}
EXPERT = "{}"
BIAS = ".moe.expert_bias"


def to_huggingface(config: Qwen3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model under transformers' names. A tied head is not exported.

    Raises ProblemsFound where transformers has no such experts, and where names or shapes are not those of the model.
    """
    if config.export_problems():
        raise ProblemsFound(config.export_problems())
    given = without_tied_head(state, tied=config.tie_word_embeddings, head="output.weight")
    given = {name: tensor for name, tensor in given.items() if not name.endswith(BIAS)}
    shapes = config.parameter_shapes()
    check_state(shapes, given)
    exported: dict[str, Tensor] = {}
    for name in shapes:
        theirs = huggingface_name(name, LAYER_NAMES)
        experts = given[name].unbind(0) if EXPERT in theirs else [given[name]]
        exported.update({theirs.format(expert): weight.contiguous() for expert, weight in enumerate(experts)})
    return exported


def from_huggingface(config: Qwen3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a Qwen3 of transformers under titanrun's names. A tied head is the embedding's matrix.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    given = without_tied_head(state, tied=config.tie_word_embeddings, head="lm_head.weight")
    given = {name: tensor for name, tensor in given.items() if not name.endswith("rotary_emb.inv_freq")}
    sources = {name: source_names(name, shape) for name, shape in config.parameter_shapes().items()}
    check_state({theirs: shape for names in sources.values() for theirs, shape in names.items()}, given)
    weights = {}
    for name, names in sources.items():
        parts = [given[theirs] for theirs in names]
        weights[name] = torch.stack(parts) if EXPERT in huggingface_name(name, LAYER_NAMES) else parts[0]
    if config.tie_word_embeddings:
        weights["output.weight"] = weights["tok_embeddings.weight"]
    if config.moe is not None and config.moe.load_balance_coeff is not None:
        zeros = torch.zeros(config.moe.num_experts, dtype=torch.float32)
        weights |= {f"layers.{layer}{BIAS}": zeros.clone() for layer in range(config.n_layers)}
    return weights


def source_names(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors of transformers that one parameter is made of."""
    theirs = huggingface_name(name, LAYER_NAMES)
    if EXPERT not in theirs:
        return {theirs: shape}
    return {theirs.format(expert): shape[1:] for expert in range(shape[0])}


def huggingface_config(config: Qwen3Config, dtype_name: str) -> dict[str, Any]:
    """The content of config.json for transformers 4 and 5; `dtype_name` is that of the weights beside it.

    Ids of special tokens belong to the tokenizer and are null here, since transformers' defaults would be wrong.
    """
    return {
        "architectures": ["Qwen3ForCausalLM" if config.moe is None else "Qwen3MoeForCausalLM"],
        "model_type": "qwen3" if config.moe is None else "qwen3_moe",
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.dim,
        "intermediate_size": config.feed_forward.hidden_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": None,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype_name,
        **({} if config.moe is None else experts_mapping(config.moe)),
    }


def experts_mapping(moe: Any) -> dict[str, Any]:
    """The part of config.json about experts."""
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.hidden_dim,
        "norm_topk_prob": moe.route_norm,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
