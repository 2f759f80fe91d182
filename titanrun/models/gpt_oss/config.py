"""Config of the gpt_oss family, and what follows from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    PAGED_BY_VLLM,
    AttentionConfig,
    DecoderInitConfig,
    Feature,
    MoeConfig,
    RopeConfig,
    Sizes,
    decided,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, Shapes, rope_conflicts
from titanrun.models.shared.huggingface_config import HuggingFaceConfig
from titanrun.models.shared.huggingface_decoder import read_decoder, read_rope

# what config.json leaves unsaid, since transformers has no choice there; the bias that balances experts is titanrun's own
EXPERTS_OF_TRANSFORMERS = {
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
    """Mixture of experts of clamped SwiGLU with biases: (clamp(u) + 1) * g * sigmoid(alpha * g), g = min(gate, limit)."""

    swiglu_limit: OrAuto[PositiveFloat] = numerics("auto", examples=[7.0])
    """Gates are cut off above it, and what they are multiplied by beyond +- it."""
    swiglu_alpha: OrAuto[PositiveFloat] = numerics("auto", examples=[1.702])
    """Factor on the gate within its sigmoid; 1.702 makes it close to a GELU."""


class GptOssConfig(GroupedQueryConfig):
    """gpt-oss: attention with biases and sinks, in every second layer within a window; experts in every layer."""

    name: Literal["gpt_oss"] = bookkeeping("gpt_oss")
    builds: ClassVar = "titanrun.models.gpt_oss.model:GptOss"
    huggingface_types: ClassVar = ("gpt_oss",)
    lacks: ClassVar[frozenset[Feature]] = frozenset({"varlen attention", "paged attention"})
    instead: ClassVar[dict[Feature, str]] = {"paged attention": PAGED_BY_VLLM}
    sliding_window: OrAuto[PositiveInt] | None = numerics("auto", unit="tokens", examples=[128])
    """Tokens that a query of the first, third, fifth ... layer sees, itself among them; null: all before it, as in the other layers."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    moe: OrAuto[GptOssMoeConfig] = component("auto")
    """The experts of every layer."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of GptOssForCausalLM; absent keys have transformers' defaults."""
        file = HuggingFaceConfig(written, family="gpt_oss")
        file.only("model_type", *cls.huggingface_types)
        sizes = read_decoder(file, max_seq_len=131072, attention_bias=True, norm_eps=1e-5)
        sizes |= {
            "n_kv_heads": file.whole("num_key_value_heads", 8),
            "head_dim": file.whole("head_dim", 64),
            "sliding_window": read_window(file, sizes["n_layers"]),
            "rope": read_rope(file, "yarn", max_seq_len=sizes["max_seq_len"], theta=150000.0),
            "moe": read_experts(file),
        }
        # what OpenAI wrote beside transformers' keys says the same once more
        file.only(
            "initial_context_length",
            (sizes["rope"]["scaling"] or {}).get("original_max_position_embeddings"),
        )
        file.close()
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads and experts that do not fit, and a ramp of RoPE that runs backwards."""
        return super().conflicts(sizes) + rope_conflicts(sizes["rope"])

    def window(self, layer: int) -> int | None:
        """Tokens that a query of a layer sees; None where there is no limit."""
        return decided(self.sliding_window) if layer % 2 == 0 else None

    def attention_shapes(self) -> Shapes:
        """Name and shape of every parameter of one layer's attention."""
        shapes: Shapes = {"attention.sinks": (decided(self.n_heads),)}
        for name, shape in super().attention_shapes().items():
            shapes |= {name: shape, name.replace("weight", "bias"): shape[:1]}
        return shapes

    def expert_shapes(self) -> Shapes:
        """Name and shape of every parameter of a layer's experts: gate and value are neighbouring rows of one matrix."""
        return clamped_expert_shapes(super().expert_shapes(), decided(self.moe), decided(self.dim))

    def kept_by_kind(self, with_experts: bool) -> tuple[int, int]:
        """As with SwiGLU; clamping keeps gate and value once more, and the sum with one is kept too."""
        stream, split = super().kept_by_kind(with_experts)
        moe = decided(self.moe)
        return stream, split + 3 * decided(moe.top_k) * decided(moe.hidden_dim)

    def export_problems(self) -> list[Problem]:
        """Experts that are chosen, weighted or shared in another way than in transformers."""
        problems = []
        for field, theirs in EXPERTS_OF_TRANSFORMERS.items():
            ours = getattr(decided(self.moe), field)
            if ours != theirs:
                message = f"transformers' GptOss has no experts with {field}: {shorten(ours)}"
                problems.append(
                    Problem(
                        "conflict",
                        message,
                        ("model", "moe", field),
                        help=f"use {shorten(theirs)}, or export nothing",
                    )
                )
        return problems


def clamped_expert_shapes(shapes: Shapes, moe: MoeConfig, dim: int) -> Shapes:
    """`shapes` of a layer with experts, these with the parameters of clamped SwiGLU."""
    experts, hidden = decided(moe.num_experts), decided(moe.hidden_dim)
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


def read_window(file: HuggingFaceConfig, n_layers: int | None) -> int | None:
    """sliding_window of a config.json, whose layers must have it in turns, beginning with the first."""
    count = n_layers or 0
    in_turns = [
        "sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(count)
    ]
    is_nowhere = file.only("layer_types", in_turns, ["full_attention"] * count) != in_turns
    # only what is written as null means none
    window: int | None = (
        None if file.rest.get("sliding_window", 0) is None else file.whole("sliding_window", 128)
    )
    file.rest.pop("sliding_window", None)
    return None if is_nowhere else window


def read_experts(file: HuggingFaceConfig) -> Sizes:
    """model.moe of a config.json."""
    for key in ("router_aux_loss_coef", "output_router_logits"):  # of a loss that is not ours
        file.rest.pop(key, None)
    top_k = file.whole("num_experts_per_tok", 4)
    file.only("experts_per_token", top_k)
    return {
        "num_experts": file.whole("num_local_experts", file.whole("num_experts", 128)),
        "top_k": top_k,
        "hidden_dim": file.whole("intermediate_size", 2880),
        "swiglu_limit": file.number("swiglu_limit", 7.0),
        "swiglu_alpha": file.number("swiglu_alpha", 1.702),
        "load_balance_coeff": LOAD_BALANCE_COEFF,
        **EXPERTS_OF_TRANSFORMERS,
    }
