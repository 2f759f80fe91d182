"""Config of the qwen3 family, dense or with experts, and quantities that follow from it."""

from typing import Any, ClassVar, Literal

from titanrun.config.base import Config
from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    MoeConfig,
    Sizes,
    unwrap_auto,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, Shapes
from titanrun.models.shared.huggingface_config import HuggingFaceConfigReader
from titanrun.models.shared.huggingface_decoder_config import read_decoder_sizes, read_rope_sizes

# values that config.json does not contain, since transformers has no choice there; only titanrun
# has the bias
TRANSFORMERS_EXPERT_SIZES = {
    "num_shared_experts": 0,
    "score_func": "softmax",
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "load_balance_coeff": 1e-3,
}


class Qwen3RopeConfig(Config):
    """Rotary position embedding of contiguous halves, in the dtype of the activations."""

    theta: OrAuto[PositiveFloat] = numerics("auto", examples=[1000000.0])
    """Base of the frequencies theta^(-2i/head_dim)."""


class Qwen3FeedForwardConfig(Config):
    """SwiGLU width of the dense layers."""

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[3072])
    """Width of the feed-forward layer. Not used if every layer is a mixture of experts."""


class Qwen3Config(GroupedQueryConfig):
    """Qwen3: pre-norm decoder with normalized queries and keys, and grouped-query attention.

    Every layer has SwiGLU, or every layer has experts.
    """

    name: Literal["qwen3"] = bookkeeping("qwen3")
    builds: ClassVar = "titanrun.models.qwen3.model:Qwen3"
    huggingface_types: ClassVar = ("qwen3", "qwen3_moe")
    attention: AttentionConfig = section(AttentionConfig)
    rope: Qwen3RopeConfig = section(Qwen3RopeConfig)
    feed_forward: Qwen3FeedForwardConfig = section(Qwen3FeedForwardConfig)
    moe: OrAuto[MoeConfig] | None = component("auto")
    """Experts of every layer. null: dense layers."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes in a config.json of Qwen3ForCausalLM or Qwen3MoeForCausalLM.

        Absent keys have transformers' defaults.
        """
        file = HuggingFaceConfigReader(config_json, family="qwen3")
        is_moe = file.take_one_allowed("model_type", *cls.huggingface_types) == "qwen3_moe"
        file.take_one_allowed("use_sliding_window", False)
        file.take_one_allowed("sliding_window", None)
        file.take_value("max_window_layers", 0, lambda value: type(value) is int, "a whole number")
        sizes = read_decoder_sizes(file, max_seq_len=32768)
        file.take_one_allowed("layer_types", ["full_attention"] * (sizes["n_layers"] or 0))
        sizes |= {
            "n_kv_heads": file.take_positive_int("num_key_value_heads", sizes["n_heads"]),
            "head_dim": file.take_positive_int("head_dim", 128),
            "rope": {"theta": read_rope_sizes(file, max_seq_len=sizes["max_seq_len"])["theta"]},
            "feed_forward": {"hidden_dim": file.take_positive_int("intermediate_size")},
            "moe": read_qwen3_experts(file) if is_moe else None,
        }
        file.check_all_keys_read()
        return sizes

    def attention_shapes(self) -> Shapes:
        """Return name and shape of every parameter of one layer's attention."""
        head_dim = unwrap_auto(self.head_dim)
        return {
            **super().attention_shapes(),
            "attention.q_norm.weight": (head_dim,),
            "attention.k_norm.weight": (head_dim,),
        }

    def attention_activation_elements(self) -> int:
        """Return the elements that attention keeps per token.

        Normalized queries and keys count once more.
        """
        return super().attention_activation_elements() + sum(self.projection_dims())

    def export_problems(self) -> list[Problem]:
        """Return expert settings that differ from transformers."""
        moe, problems = unwrap_auto(self.moe), []
        for field, theirs in TRANSFORMERS_EXPERT_SIZES.items() if moe is not None else ():
            ours = getattr(moe, field)
            if ours != theirs and field != "load_balance_coeff":
                message = (
                    f"transformers' Qwen3 does not support moe.{field} {format_short_value(ours)}"
                )
                problems.append(
                    Problem(
                        "conflict",
                        message,
                        ("model", "moe", field),
                        hint=f"use {format_short_value(theirs)}, or disable the export",
                    )
                )
        return problems


def read_qwen3_experts(file: HuggingFaceConfigReader) -> Sizes:
    """Return model.moe of a config.json of Qwen3MoeForCausalLM.

    Every layer must have experts.
    """
    file.take_one_allowed("decoder_sparse_step", 1)
    file.take_one_allowed("mlp_only_layers", [])
    for key in (
        "router_aux_loss_coef",
        "output_router_logits",
    ):  # keys of a loss that titanrun does not use
        file.remaining.pop(key, None)
    num_experts = file.take_positive_int(
        "num_experts", file.take_positive_int("num_local_experts", 128)
    )
    return {
        "num_experts": num_experts,
        "top_k": file.take_positive_int("num_experts_per_tok", 8),
        "hidden_dim": file.take_positive_int("moe_intermediate_size", 768),
        "route_norm": file.take_bool("norm_topk_prob", False),
        **TRANSFORMERS_EXPERT_SIZES,
    }
