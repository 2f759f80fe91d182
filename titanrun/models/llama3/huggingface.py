"""Llama 3 weights under the names of transformers' LlamaForCausalLM, and back.

transformers turns the halves of a head in RoPE, (x_p, x_p+H/2), where titanrun turns neighbours, (x_2p, x_2p+1): the rows of wq
and wk are reordered within each head.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.huggingface_weights import check_state, huggingface_name, without_tied_head

LAYER_NAMES = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}


def to_huggingface(config: Llama3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model under transformers' names. A tied head is not exported.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    given = without_tied_head(state, tied=config.tie_word_embeddings, head="output.weight")
    check_state(config.parameter_shapes(), given)
    return {huggingface_name(name, LAYER_NAMES): pairs_to_halves(given[name], heads_of(config, name)) for name in config.parameter_shapes()}


def from_huggingface(config: Llama3Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a LlamaForCausalLM under titanrun's names. A tied head is the embedding's matrix.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    given = without_tied_head(state, tied=config.tie_word_embeddings, head="lm_head.weight")
    # older versions of transformers saved the frequencies that RoPE is computed from
    given = {name: tensor for name, tensor in given.items() if not name.endswith("rotary_emb.inv_freq")}
    shapes = config.parameter_shapes()
    check_state({huggingface_name(name, LAYER_NAMES): shape for name, shape in shapes.items()}, given)
    weights = {name: halves_to_pairs(given[huggingface_name(name, LAYER_NAMES)], heads_of(config, name)) for name in shapes}
    if config.tie_word_embeddings:
        weights["output.weight"] = weights["tok_embeddings.weight"]
    return weights


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
    """The content of config.json for transformers 4 and 5; `dtype_name` is that of the weights beside it.

    Ids of special tokens belong to the tokenizer and are null here, since transformers' defaults would be wrong.
    """
    scaling = config.rope.scaling
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
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
        "rope_scaling": None if scaling is None else scaling_mapping(scaling),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype_name,
    }


def scaling_mapping(scaling: Any) -> dict[str, Any]:
    """RoPE scaling as transformers writes it."""
    return {
        "rope_type": scaling.name,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }
