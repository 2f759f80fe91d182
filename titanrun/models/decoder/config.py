"""Config of the decoder family: a custom decoder of parts that the other families have."""

from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat
from titanrun.models.decoder.custom_parts_config import (
    DEFAULT_EXPERT_SIZES,
    CustomAttentionConfig,
    CustomFeedForwardConfig,
    CustomMoeConfig,
    CustomRopeConfig,
    HiddenPattern,
    fill_default_expert_sizes,
    fill_default_latent_sizes,
    find_attention_problems,
    find_expert_problems,
    find_latent_problems,
    find_pattern_problems,
    get_pattern_item,
)
from titanrun.models.decoder.hf_mapping_config import (
    find_nearest_family,
    read_custom_decoder_sizes,
    to_family_sizes,
)
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.gpt_oss.config import GptOssConfig, get_clamped_expert_shapes
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.config import (
    DecoderInitConfig,
    ModelConfig,
    Sizes,
    fill_default_dims,
    unwrap_auto,
)
from titanrun.models.shared.decoder_config import (
    GroupedQueryConfig,
    Shapes,
    build_size_problem,
    find_rope_problems,
)
from titanrun.models.shared.latent_config import (
    count_latent_activation_elements,
    get_latent_attention_shapes,
    get_latent_kv_dim,
)
from titanrun.models.shared.spec.flavors import resolve_model_sizes

FAMILIES: dict[str, type[ModelConfig]] = {
    "llama3": Llama3Config,
    "qwen3": Qwen3Config,
    "gpt_oss": GptOssConfig,
    "deepseek_v3": DeepseekV3Config,
}


class CustomDecoderConfig(GroupedQueryConfig):
    """A pre-norm decoder of selectable parts: norms, attention, positions, SwiGLU or experts.

    Positions, attention windows and experts are selected by layer.
    """

    name: Literal["decoder"] = bookkeeping("decoder")
    builds: ClassVar = "titanrun.models.decoder.model:CustomDecoder"
    derived_fields: ClassVar = (
        GroupedQueryConfig.derived_fields
        | {("n_kv_heads",), ("head_dim",), ("feed_forward", "hidden_dim"), ("moe", "swiglu_alpha")}
        | {("attention", "latent", field) for field in ("q_lora_rank", "norm_eps")}
        | {("moe", field) for field in DEFAULT_EXPERT_SIZES}
    )
    norm: OrAuto[Literal["rms", "layer"]] = numerics("auto")
    """Norms of the residual stream: RMSNorm, or LayerNorm without bias."""
    post_norms: OrAuto[bool] = numerics("auto")
    """Whether the outputs of attention and feed-forward part are normalized too, before they are
    added to the stream.
    """
    logit_soft_cap: OrAuto[PositiveFloat] | None = numerics("auto", examples=[30.0])
    """Limit c of the logits, which become c tanh(x / c). null: no cap."""
    hidden_pattern: OrAuto[HiddenPattern] = numerics("auto", examples=[["dense", "experts"]])
    """Repeating pattern of dense layers and layers with experts, from the first layer on. No effect
    if `moe` is null.
    """
    attention: CustomAttentionConfig = section(CustomAttentionConfig)
    rope: CustomRopeConfig = section(CustomRopeConfig)
    feed_forward: CustomFeedForwardConfig = section(CustomFeedForwardConfig)
    moe: OrAuto[CustomMoeConfig] | None = component("auto")
    """Experts of the layers that have some. null: all layers are dense."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes of a transformers model that one of the families reads."""
        return read_custom_decoder_sizes(config_json, FAMILIES)

    @classmethod
    def fill_derived_sizes(cls, sizes: Sizes) -> Sizes:
        """Fill undecided sizes that follow from others.

        These are key and value heads, head width, feed-forward width, the defaults of experts, the
        sizes of latent attention, and the std of the output head.
        """
        sizes = fill_default_latent_sizes(super().fill_derived_sizes(sizes))
        sizes["moe"] = fill_default_expert_sizes(sizes["moe"])
        return fill_default_dims(sizes)

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find heads that do not divide, patterns that match no layer, and conflicting parts."""
        dim, n_heads = sizes["dim"], sizes["n_heads"]
        if isinstance(sizes["attention"]["latent"], dict):
            # no head is rotated as a whole, or shared
            problems = (
                find_latent_problems(sizes)
                + super(GroupedQueryConfig, cls).find_size_problems(sizes)
                + find_rope_problems(sizes["rope"])
            )
            return (
                problems
                + find_pattern_problems(sizes)
                + find_attention_problems(sizes["attention"])
                + find_expert_problems(sizes)
            )
        if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads) and dim % n_heads:
            return [
                build_size_problem(
                    "n_heads",
                    f"dim {dim} is not divisible by n_heads {n_heads}",
                    "change one of them, or set head_dim",
                )
            ]
        problems = super().find_size_problems(cls.fill_derived_sizes(sizes)) + find_rope_problems(
            sizes["rope"]
        )
        return (
            problems
            + find_pattern_problems(sizes)
            + find_attention_problems(sizes["attention"])
            + find_expert_problems(sizes)
        )

    def has_experts(self, layer: int) -> bool:
        """Return whether the feed-forward part of a layer is a mixture of experts."""
        return (
            unwrap_auto(self.moe) is not None
            and get_pattern_item(unwrap_auto(self.hidden_pattern), layer) == "experts"
        )

    def uses_rope(self, layer: int) -> bool:
        """Return whether a layer applies RoPE to its queries and keys."""
        return get_pattern_item(unwrap_auto(self.rope.pattern), layer) == "rope"

    def get_window(self, layer: int) -> int | None:
        """Return the number of tokens that a query of a layer sees, or None without a limit."""
        return (
            unwrap_auto(self.attention.window)
            if get_pattern_item(unwrap_auto(self.attention.window_pattern), layer) == "window"
            else None
        )

    def count_routed_experts(self) -> int:
        """Return the number of experts of a layer that a router chooses from, 0 if dense."""
        return super().count_routed_experts() if self.expert_layer_count() else 0

    def rope_head_dim(self) -> int:
        """Return the width of the part of a query or key that RoPE rotates."""
        latent = unwrap_auto(self.attention.latent)
        return (
            unwrap_auto(self.head_dim) if latent is None else unwrap_auto(latent.qk_rope_head_dim)
        )

    def head_counts(self) -> dict[str, int]:
        """Return the number of attention heads. Latent attention has keys and values for each."""
        found = super().head_counts()
        return (
            found if unwrap_auto(self.attention.latent) is None else {"n_heads": found["n_heads"]}
        )

    def attention_shapes(self) -> Shapes:
        """Return name and shape of every parameter of one layer's attention."""
        latent = unwrap_auto(self.attention.latent)
        if latent is not None:
            return get_latent_attention_shapes(
                latent, dim=unwrap_auto(self.dim), heads=unwrap_auto(self.n_heads)
            )
        attention, shapes = self.attention, super().attention_shapes()
        biased = {"none": (), "qkv": ("wq", "wk", "wv"), "all": ("wq", "wk", "wv", "wo")}[
            unwrap_auto(attention.bias)
        ]
        found: Shapes = (
            {"attention.sinks": (unwrap_auto(self.n_heads),)}
            if unwrap_auto(attention.sinks)
            else {}
        )
        for name, shape in shapes.items():
            found[name] = shape
            if name.split(".")[1] in biased:
                found[name.replace("weight", "bias")] = shape[:1]
        norms = (
            ("attention.q_norm.weight", "attention.k_norm.weight")
            if unwrap_auto(attention.qk_norm)
            else ()
        )
        return found | dict.fromkeys(norms, (unwrap_auto(self.head_dim),))

    def feed_forward_shapes(self) -> Shapes:
        """Return name and shape of every parameter of a dense layer's SwiGLU."""
        found: Shapes = {}
        for name, shape in super().feed_forward_shapes().items():
            found[name] = shape
            if unwrap_auto(self.feed_forward.bias):
                found[name.replace("weight", "bias")] = shape[:1]
        return found

    def expert_shapes(self) -> Shapes:
        """Return name and shape of every parameter of a mixture of experts."""
        moe, shapes = unwrap_auto(self.moe), super().expert_shapes()
        assert moe is not None
        return (
            shapes
            if unwrap_auto(moe.swiglu_limit) is None
            else get_clamped_expert_shapes(shapes, moe, unwrap_auto(self.dim))
        )

    def layer_shapes(self, *, has_experts: bool) -> Shapes:
        """Return name and shape of every parameter of one layer."""
        names = (
            ("attention_post_norm.weight", "ffn_post_norm.weight")
            if unwrap_auto(self.post_norms)
            else ()
        )
        return super().layer_shapes(has_experts=has_experts) | dict.fromkeys(
            names, (unwrap_auto(self.dim),)
        )

    def attention_activation_elements(self) -> int:
        """Return the elements that attention keeps per token.

        Normalized queries and keys count once more.
        """
        latent = unwrap_auto(self.attention.latent)
        if latent is not None:
            return count_latent_activation_elements(latent, heads=unwrap_auto(self.n_heads))
        return super().attention_activation_elements() + (
            sum(self.projection_dims()) if unwrap_auto(self.attention.qk_norm) else 0
        )

    def kv_dim(self) -> int:
        """Return the width of keys plus values of all heads of one layer."""
        latent = unwrap_auto(self.attention.latent)
        return (
            super().kv_dim()
            if latent is None
            else get_latent_kv_dim(latent, heads=unwrap_auto(self.n_heads))
        )

    def attention_dim(self) -> int:
        """Return key width plus value width of all query heads of all layers."""
        return (
            super().attention_dim()
            if unwrap_auto(self.attention.latent) is None
            else self.layer_count() * self.kv_dim()
        )

    def activation_elements_by_layer_kind(self, has_experts: bool) -> tuple[int, int]:
        """Return the elements that a layer keeps per token.

        Post-norms keep their inputs. Clamping keeps gate and value once more, and their sum with
        one.
        """
        stream, split = super().activation_elements_by_layer_kind(has_experts)
        moe = unwrap_auto(self.moe)
        clamped = moe is not None and has_experts and unwrap_auto(moe.swiglu_limit) is not None
        behind = 2 * unwrap_auto(self.dim) if unwrap_auto(self.post_norms) else 0
        return stream + behind, split + (
            3 * unwrap_auto(moe.top_k) * unwrap_auto(moe.hidden_dim)
            if moe is not None and clamped
            else 0
        )

    def export_problems(self) -> list[Problem]:
        """Return the parts that prevent an export.

        These are parts that the nearest family with a class in transformers does not have, and
        those that this family cannot export.
        """
        family, problems = find_nearest_family(self)
        return problems or self.to_family_config(family).export_problems()

    def to_family_config(self, family: str) -> ModelConfig:
        """Return the same model in the config of a family that has all its parts."""
        chosen = FAMILIES[family]
        return chosen.model_validate(
            resolve_model_sizes(chosen.model_validate(to_family_sizes(self, family)))
        )
