"""Config of the gpt-oss family, and quantities that follow from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    PAGED_ATTENTION_ALTERNATIVE,
    AttentionConfig,
    DecoderInitConfig,
    ModelFeature,
    MoeConfig,
    Sizes,
    unwrap_auto,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, Shapes, find_rope_problems
from titanrun.models.shared.huggingface_config import HuggingFaceConfigReader
from titanrun.models.shared.huggingface_decoder_config import read_decoder_sizes, read_rope_sizes
from titanrun.models.shared.rope_config import RopeConfig

# values that config.json does not contain, since transformers has no choice there; only titanrun
# has the bias that balances experts
TRANSFORMERS_EXPERT_SIZES = {
    "num_shared_experts": 0,
    "score_func": "softmax",
    "route_norm": True,
    "route_scale": 1.0,
    "gate_bias": True,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
}
LOAD_BALANCE_COEFF = 1e-3


class GptOssMoeConfig(MoeConfig):
    """Mixture of experts of clamped SwiGLU with biases.

    An expert computes (clamp(u) + 1) * g * sigmoid(alpha * g), where g = min(gate, limit).
    """

    swiglu_limit: OrAuto[PositiveFloat] = numerics("auto", examples=[7.0])
    """Upper limit of gates, and limit +- of the values that they are multiplied by."""
    swiglu_alpha: OrAuto[PositiveFloat] = numerics("auto", examples=[1.702])
    """Factor on the gate within its sigmoid. 1.702 is close to a GELU."""


class GptOssConfig(GroupedQueryConfig):
    """gpt-oss: attention with biases and sinks, and experts in every layer.

    Every second layer has an attention window.
    """

    name: Literal["gpt_oss"] = bookkeeping("gpt_oss")
    builds: ClassVar = "titanrun.models.gpt_oss.model:GptOss"
    huggingface_types: ClassVar = ("gpt_oss",)
    unsupported_features: ClassVar[frozenset[ModelFeature]] = frozenset(
        {"varlen attention", "paged attention"}
    )
    alternative: ClassVar[dict[ModelFeature, str]] = {
        "paged attention": PAGED_ATTENTION_ALTERNATIVE
    }
    sliding_window: OrAuto[PositiveInt] | None = numerics("auto", unit="tokens", examples=[128])
    """Number of tokens that a query of the first, third, fifth ... layer sees, including itself.
    null: all earlier tokens, as in the other layers.
    """
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    moe: OrAuto[GptOssMoeConfig] = component("auto")
    """Experts of every layer."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes in a config.json of GptOssForCausalLM.

        Absent keys have transformers' defaults.
        """
        file = HuggingFaceConfigReader(config_json, family="gpt_oss")
        file.take_one_allowed("model_type", *cls.huggingface_types)
        sizes = read_decoder_sizes(file, max_seq_len=131072, attention_bias=True, norm_eps=1e-5)
        sizes |= {
            "n_kv_heads": file.take_positive_int("num_key_value_heads", 8),
            "head_dim": file.take_positive_int("head_dim", 64),
            "sliding_window": read_sliding_window(file, sizes["n_layers"]),
            "rope": read_rope_sizes(file, "yarn", max_seq_len=sizes["max_seq_len"], theta=150000.0),
            "moe": read_gpt_oss_experts(file),
        }
        # OpenAI's own key repeats the value of transformers' key
        file.take_one_allowed(
            "initial_context_length",
            (sizes["rope"]["scaling"] or {}).get("original_max_position_embeddings"),
        )
        file.check_all_keys_read()
        return sizes

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find heads and experts that do not fit, and a RoPE ramp that runs backwards."""
        return super().find_size_problems(sizes) + find_rope_problems(sizes["rope"])

    def get_window(self, layer: int) -> int | None:
        """Return the number of tokens that a query of a layer sees, or None without a limit."""
        return unwrap_auto(self.sliding_window) if layer % 2 == 0 else None

    def attention_shapes(self) -> Shapes:
        """Return name and shape of every parameter of one layer's attention."""
        shapes: Shapes = {"attention.sinks": (unwrap_auto(self.n_heads),)}
        for name, shape in super().attention_shapes().items():
            shapes |= {name: shape, name.replace("weight", "bias"): shape[:1]}
        return shapes

    def expert_shapes(self) -> Shapes:
        """Return name and shape of every parameter of a layer's experts.

        Gate and value are neighboring rows of one matrix.
        """
        return get_clamped_expert_shapes(
            super().expert_shapes(), unwrap_auto(self.moe), unwrap_auto(self.dim)
        )

    def activation_elements_by_layer_kind(self, has_experts: bool) -> tuple[int, int]:
        """Return the elements that a layer keeps per token.

        Clamping keeps gate and value once more than SwiGLU, and also their sum with one.
        """
        stream, split = super().activation_elements_by_layer_kind(has_experts)
        moe = unwrap_auto(self.moe)
        return stream, split + 3 * unwrap_auto(moe.top_k) * unwrap_auto(moe.hidden_dim)

    def export_problems(self) -> list[Problem]:
        """Return expert settings that differ from transformers."""
        problems = []
        for field, theirs in TRANSFORMERS_EXPERT_SIZES.items():
            ours = getattr(unwrap_auto(self.moe), field)
            if ours != theirs:
                message = (
                    f"transformers' GptOss does not support moe.{field} {format_short_value(ours)}"
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


def get_clamped_expert_shapes(shapes: Shapes, moe: MoeConfig, dim: int) -> Shapes:
    """Return the shapes of a layer whose experts have the parameters of clamped SwiGLU."""
    experts, hidden = unwrap_auto(moe.num_experts), unwrap_auto(moe.hidden_dim)
    own: Shapes = {
        "moe.experts.mlp1_weight": (experts, 2 * hidden, dim),
        "moe.experts.mlp1_bias": (experts, 2 * hidden),
        "moe.experts.mlp2_weight": (experts, dim, hidden),
        "moe.experts.mlp2_bias": (experts, dim),
    }
    routed = {name: shape for name, shape in shapes.items() if name.startswith("moe.router.")}
    shared = {
        name: shape for name, shape in shapes.items() if name.startswith("moe.shared_experts.")
    }
    return {**routed, **own, **shared}


def read_sliding_window(file: HuggingFaceConfigReader, n_layers: int | None) -> int | None:
    """Return sliding_window of a config.json.

    Layers must alternate between window and full attention, beginning with a window.
    """
    count = n_layers or 0
    alternating = [
        "sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(count)
    ]
    is_nowhere = (
        file.take_one_allowed("layer_types", alternating, ["full_attention"] * count) != alternating
    )
    # only an explicit null disables the window
    window: int | None = (
        None
        if file.remaining.get("sliding_window", 0) is None
        else file.take_positive_int("sliding_window", 128)
    )
    file.remaining.pop("sliding_window", None)
    return None if is_nowhere else window


def read_gpt_oss_experts(file: HuggingFaceConfigReader) -> Sizes:
    """Return model.moe of a config.json."""
    for key in (
        "router_aux_loss_coef",
        "output_router_logits",
    ):  # keys of a loss that titanrun does not use
        file.remaining.pop(key, None)
    top_k = file.take_positive_int("num_experts_per_tok", 4)
    file.take_one_allowed("experts_per_token", top_k)
    return {
        "num_experts": file.take_positive_int(
            "num_local_experts", file.take_positive_int("num_experts", 128)
        ),
        "top_k": top_k,
        "hidden_dim": file.take_positive_int("intermediate_size", 2880),
        "swiglu_limit": file.take_positive_float("swiglu_limit", 7.0),
        "swiglu_alpha": file.take_positive_float("swiglu_alpha", 1.702),
        "load_balance_coeff": LOAD_BALANCE_COEFF,
        **TRANSFORMERS_EXPERT_SIZES,
    }
