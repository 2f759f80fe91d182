"""Config of the qwen3 family, dense and mixture of experts, and what follows from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    MoeConfig,
    Sizes,
    decided,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, Shapes
from titanrun.models.shared.huggingface_config import HuggingFaceConfig
from titanrun.models.shared.huggingface_decoder import read_decoder, read_rope

# what config.json leaves unsaid, since transformers has no choice there; the bias is titanrun's own
EXPERTS_OF_TRANSFORMERS = {
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
    """Width of the hidden layer; not used where every layer is a mixture of experts."""


class Qwen3Config(GroupedQueryConfig):
    """Qwen3: pre-norm decoder with normalised queries and keys, grouped-query attention, SwiGLU or experts in every layer."""

    name: Literal["qwen3"] = bookkeeping("qwen3")
    builds: ClassVar = "titanrun.models.qwen3.model:Qwen3"
    huggingface_types: ClassVar = ("qwen3", "qwen3_moe")
    attention: AttentionConfig = section(AttentionConfig)
    rope: Qwen3RopeConfig = section(Qwen3RopeConfig)
    feed_forward: Qwen3FeedForwardConfig = section(Qwen3FeedForwardConfig)
    moe: OrAuto[MoeConfig] | None = component("auto")
    """The experts of every layer; null: dense layers."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of Qwen3ForCausalLM or Qwen3MoeForCausalLM; absent keys have transformers' defaults."""
        file = HuggingFaceConfig(written, family="qwen3")
        is_moe = file.only("model_type", *cls.huggingface_types) == "qwen3_moe"
        file.only("use_sliding_window", False)
        file.only("sliding_window", None)
        file.take("max_window_layers", 0, lambda value: type(value) is int, "a whole number")
        sizes = read_decoder(file, max_seq_len=32768)
        file.only("layer_types", ["full_attention"] * (sizes["n_layers"] or 0))
        sizes |= {
            "n_kv_heads": file.whole("num_key_value_heads", sizes["n_heads"]),
            "head_dim": file.whole("head_dim", 128),
            "rope": {"theta": read_rope(file, max_seq_len=sizes["max_seq_len"])["theta"]},
            "feed_forward": {"hidden_dim": file.whole("intermediate_size")},
            "moe": read_experts(file) if is_moe else None,
        }
        file.close()
        return sizes

    def attention_shapes(self) -> Shapes:
        """Name and shape of every parameter of one layer's attention."""
        head_dim = decided(self.head_dim)
        return {
            **super().attention_shapes(),
            "attention.q_norm.weight": (head_dim,),
            "attention.k_norm.weight": (head_dim,),
        }

    def kept_by_attention(self) -> int:
        """As without norms, and queries and keys once more."""
        return super().kept_by_attention() + sum(self.projection_widths())

    def export_problems(self) -> list[Problem]:
        """Experts that are chosen, weighted or shared in another way than in transformers."""
        moe, problems = decided(self.moe), []
        for field, theirs in EXPERTS_OF_TRANSFORMERS.items() if moe is not None else ():
            ours = getattr(moe, field)
            if ours != theirs and field != "load_balance_coeff":
                message = f"transformers' Qwen3 has no experts with {field}: {shorten(ours)}"
                problems.append(
                    Problem(
                        "conflict",
                        message,
                        ("model", "moe", field),
                        help=f"use {shorten(theirs)}, or export nothing",
                    )
                )
        return problems


def read_experts(file: HuggingFaceConfig) -> Sizes:
    """model.moe of a config.json of Qwen3MoeForCausalLM, whose every layer must have experts."""
    file.only("decoder_sparse_step", 1)
    file.only("mlp_only_layers", [])
    for key in ("router_aux_loss_coef", "output_router_logits"):  # of a loss that is not ours
        file.rest.pop(key, None)
    num_experts = file.whole("num_experts", file.whole("num_local_experts", 128))
    return {
        "num_experts": num_experts,
        "top_k": file.whole("num_experts_per_tok", 8),
        "hidden_dim": file.whole("moe_intermediate_size", 768),
        "route_norm": file.flag("norm_topk_prob", False),
        **EXPERTS_OF_TRANSFORMERS,
    }
