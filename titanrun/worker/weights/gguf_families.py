"""What each model family is in a GGUF file: its metadata and the layout of its weights."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
ModelSettings = Mapping[str, Any]
WeightIterator = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """A family of the format.

    `architecture` is its name there, `enum_name` that of the member of gguf.MODEL_ARCH.
    `iter_weights` yields weights by transformers' names, without experts' numbers, in the format's
    layout. `find_difference` states what llama.cpp would compute differently, empty if nothing.
    """

    architecture: str
    enum_name: str
    add_settings: Callable[[Any, Any, ModelSettings], None]
    iter_weights: Callable[[Weights, ModelSettings], WeightIterator]
    find_difference: Callable[[ModelSettings], str] = lambda config: ""


def add_decoder_settings(gguf: Any, writer: Any, config: ModelSettings) -> None:
    """Write the settings that all decoders have; `config` is the content of config.json."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])


def add_llama_settings(gguf: Any, writer: Any, config: ModelSettings) -> None:
    """Write the settings of Llama 3. Its scaled frequencies are a tensor."""
    add_decoder_settings(gguf, writer, config)
    writer.add_rope_dimension_count(config["head_dim"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])


def add_moe_settings(gguf: Any, writer: Any, config: ModelSettings) -> None:
    """Write the settings of Qwen3 with experts."""
    add_decoder_settings(gguf, writer, config)
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_gpt_oss_settings(gguf: Any, writer: Any, config: ModelSettings) -> None:
    """Write the settings of gpt-oss."""
    add_decoder_settings(gguf, writer, config)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])


def add_deepseek_settings(gguf: Any, writer: Any, config: ModelSettings) -> None:
    """Write the settings of DeepSeek-V3.

    Its latent attention is multi-query attention to the latent vectors: keys are a latent vector
    and a rotated part, values the latent vector.
    """
    latent, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(rotated)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(latent)
    writer.add_key_length(latent + rotated)
    writer.add_value_length(latent)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    add_deepseek_expert_settings(gguf, writer, config)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def add_deepseek_expert_settings(gguf: Any, writer: Any, config: ModelSettings) -> None:
    """Write the settings of the experts of DeepSeek-V3."""
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])


def find_deepseek_difference(config: ModelSettings) -> str:
    """Return what of a model llama.cpp does not have."""
    scaling = config.get("rope_scaling") or {}
    is_yarn = scaling.get("rope_type") == "yarn"
    differs = {
        # the norms of latent vectors have 1e-6 in transformers, here all norms have one epsilon
        "rms_norm_eps": config["rms_norm_eps"] != 1e-6,
        "q_lora_rank: null": config.get("q_lora_rank") is None,
        "n_shared_experts: 0": not config["n_shared_experts"],
        "first_k_dense_replace": config["first_k_dense_replace"] >= config["num_hidden_layers"],
        "mscale": is_yarn and scaling.get("mscale") != scaling.get("mscale_all_dim"),
    }
    return ", ".join(name for name, is_other in differs.items() if is_other)


def find_gpt_oss_difference(config: ModelSettings) -> str:
    """Return what of a model differs from OpenAI's, whose values are fixed in llama.cpp."""
    kinds = ["sliding_attention", "full_attention"]
    layers = [kinds[layer % 2] for layer in range(config["num_hidden_layers"])]
    scaling = config.get("rope_scaling") or {}
    growth = 0.1 * math.log(scaling["factor"]) + 1 if scaling.get("rope_type") == "yarn" else 1.0
    differs = {
        "swiglu_limit": config.get("swiglu_limit", 7.0) != 7.0,
        "swiglu_alpha": config.get("swiglu_alpha", 1.702) != 1.702,
        "sliding windows in other layers": config.get("layer_types", layers) != layers,
        "attention_factor": abs(scaling.get("attention_factor", growth) - growth) > 1e-6,
    }
    return ", ".join(name for name, is_other in differs.items() if is_other)


def iter_llama_weights(weights: Weights, config: ModelSettings) -> WeightIterator:
    """Yield the weights; RoPE rotates neighbors, where transformers rotates halves."""
    heads = {
        "q_proj.weight": config["num_attention_heads"],
        "k_proj.weight": config["num_key_value_heads"],
    }
    for name, weight in weights.items():
        count = heads.get(".".join(name.split(".")[-2:]))
        yield name, weight if count is None else swap_halves(weight, count)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", compute_llama3_factors(config, scaling)


def swap_halves(weight: Tensor, heads: int) -> Tensor:
    """Move rows p and p + H/2 of each head to 2p and 2p + 1."""
    return weight.reshape(heads, 2, -1, weight.size(1)).transpose(1, 2).reshape(weight.shape)


def compute_llama3_factors(config: ModelSettings, scaling: Mapping[str, Any]) -> Tensor:
    """Return the number by which each frequency of Llama 3.1 is divided, [head_dim / 2]."""
    exponents = torch.arange(0, config["head_dim"], 2, dtype=torch.float64) / config["head_dim"]
    turns = scaling["original_max_position_embeddings"] / (
        2 * math.pi * config["rope_theta"] ** exponents
    )
    low, high, factor = (
        scaling[name] for name in ("low_freq_factor", "high_freq_factor", "factor")
    )
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    divisors: Tensor = 1 / ((1 - smooth) / factor + smooth)
    return divisors.float()


def iter_weights_unchanged(weights: Weights, config: ModelSettings) -> WeightIterator:
    """Yield the weights."""
    yield from weights.items()


def iter_deepseek_weights(weights: Weights, config: ModelSettings) -> WeightIterator:
    """Yield the weights, with keys and values of the latent vectors apart, per head.

    Layers for multi-token prediction are left out.
    """
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    layers = tuple(f"model.layers.{layer}." for layer in range(config["num_hidden_layers"]))
    kept = {
        name: weight
        for name, weight in weights.items()
        if name.startswith(layers) or not name.startswith("model.layers.")
    }
    for name, weight in iter_stacked_experts(kept, config):
        before, found, _ = name.partition("kv_b_proj.weight")
        if found:
            keys, values = weight.view(heads, -1, weight.size(1)).tensor_split([nope], dim=1)
            yield f"{before}k_b_proj.weight", keys.mT
            yield f"{before}v_b_proj.weight", values
        else:
            yield name.replace("e_score_correction_bias", "e_score_correction.bias"), weight


def iter_stacked_experts(weights: Weights, config: ModelSettings) -> WeightIterator:
    """Yield the weights, with the matrices of a layer's experts in one tensor [E, out, in]."""
    count = config["num_experts"] if "num_experts" in config else config["n_routed_experts"]
    for name, weight in weights.items():
        before, found, rest = name.partition(".experts.")
        if not found:
            yield name, weight
            continue
        number, _, matrix = rest.partition(".")
        if number == "0":
            parts = [weights[f"{before}.experts.{expert}.{matrix}"] for expert in range(count)]
            yield f"{before}.experts.{matrix}", torch.stack(parts)


def iter_gpt_oss_weights(weights: Weights, config: ModelSettings) -> WeightIterator:
    """Yield the weights, with experts' matrices as [E, out, in], and gates apart from values."""
    for name, weight in weights.items():
        head, _, last = name.rpartition(".")
        if last in ("gate_up_proj", "gate_up_proj_bias"):
            rows = weight.mT if last == "gate_up_proj" else weight
            suffix = "weight" if last == "gate_up_proj" else "bias"
            # gates and values alternate
            yield f"{head}.gate_proj.{suffix}", rows[:, 0::2]
            yield f"{head}.up_proj.{suffix}", rows[:, 1::2]
        elif last in ("down_proj", "down_proj_bias"):
            suffix = "weight" if last == "down_proj" else "bias"
            yield f"{head}.down_proj.{suffix}", weight.mT if suffix == "weight" else weight
        else:
            yield f"{name}.weight" if last == "sinks" else name, weight


FAMILIES: Mapping[str, GgufFamily] = {
    "deepseek_v3": GgufFamily(
        "deepseek2",
        "DEEPSEEK2",
        add_deepseek_settings,
        iter_deepseek_weights,
        find_deepseek_difference,
    ),
    "llama": GgufFamily("llama", "LLAMA", add_llama_settings, iter_llama_weights),
    "gpt_oss": GgufFamily(
        "gpt-oss", "GPT_OSS", add_gpt_oss_settings, iter_gpt_oss_weights, find_gpt_oss_difference
    ),
    "qwen3": GgufFamily("qwen3", "QWEN3", add_decoder_settings, iter_weights_unchanged),
    "qwen3_moe": GgufFamily("qwen3moe", "QWEN3MOE", add_moe_settings, iter_stacked_experts),
}
"""By `model_type` of config.json."""
ROPE_TYPES = {
    "deepseek_v3": (None, "default", "yarn"),
    "gpt_oss": (None, "default", "yarn"),
    "llama": (None, "default", "linear", "llama3"),
}
