"""Config of the decoder family: a decoder put together from ingredients that the other families have, as data."""

from typing import Any, ClassVar, Literal, TypeAlias

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.decoder.correspondence import family_sizes, nearest, read_sizes
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.gpt_oss.config import GptOssConfig, clamped_expert_shapes
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    FeedForwardConfig,
    ModelConfig,
    MoeConfig,
    RopeConfig,
    Sizes,
    decided,
    with_plain_widths,
)
from titanrun.models.shared.decoder_config import (
    GroupedQueryConfig,
    Shapes,
    conflict,
    rope_conflicts,
)
from titanrun.models.shared.flavors import spell_out
from titanrun.models.shared.latent_config import (
    kept_by_latent_attention,
    latent_key_value_width,
    latent_shapes,
)

FAMILIES: dict[str, type[ModelConfig]] = {
    "llama3": Llama3Config,
    "qwen3": Qwen3Config,
    "gpt_oss": GptOssConfig,
    "deepseek_v3": DeepseekV3Config,
}
# of experts what a recipe does not say
PLAIN_EXPERTS: Sizes = {
    "num_shared_experts": 0,
    "score_func": "softmax",
    "route_norm": True,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "load_balance_coeff": 1e-3,
    "swiglu_limit": None,
}
# with which clamped SwiGLU is close to a GELU
ALPHA_OF_GPT_OSS = 1.702
Windows: TypeAlias = tuple[Literal["window", "full"], ...]
Positions: TypeAlias = tuple[Literal["rope", "none"], ...]
HiddenParts: TypeAlias = tuple[Literal["dense", "experts"], ...]


class LatentConfig(Config):
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434): one short vector a token makes the keys and values of all heads."""

    q_lora_rank: OrAuto[PositiveInt] | None = numerics("auto", examples=[1536])
    """Width that queries are compressed to; `auto` is null: queries are not compressed."""
    kv_lora_rank: OrAuto[PositiveInt] = numerics("auto", examples=[512])
    """Width that keys and values are compressed to, together."""
    qk_nope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the part of a query or key that RoPE leaves alone."""
    qk_rope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[64])
    """Width of the part of a query or key that RoPE turns; all heads share that part of the key."""
    v_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the value of one head."""
    norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-6])
    """Epsilon of the norms of what queries, and keys and values, are compressed to; `auto` is that of all norms."""


class IngredientsAttentionConfig(AttentionConfig):
    """How scores are computed, which of them are masked, and what belongs to attention beside the projections."""

    qk_norm: OrAuto[bool] = numerics("auto")
    """Whether queries and keys are normalised head by head, before RoPE."""
    bias: OrAuto[Literal["none", "qkv", "all"]] = numerics("auto")
    """Which projections have a bias: those to queries, keys and values, or the one into the stream as well."""
    sinks: OrAuto[bool] = numerics("auto")
    """Whether each query head has the score of a key of no token, whose value is zero."""
    window: OrAuto[PositiveInt] | None = numerics("auto", unit="tokens", examples=[128])
    """Tokens that a query sees in the layers that `window_pattern` says, itself among them; null: all before it."""
    window_pattern: OrAuto[Windows] = numerics("auto", examples=[["window", "full"]])
    """Which layers have the window, from the first on, over and over."""
    soft_cap: OrAuto[PositiveFloat] | None = numerics("auto", examples=[50.0])
    """What scores approach and never exceed, c tanh(s / c); null: no cap."""
    latent: OrAuto[LatentConfig] | None = component("auto")
    """Keys and values made from a short vector, with scores that YaRN makes larger; null: grouped-query attention."""


class IngredientsRopeConfig(RopeConfig):
    """Rotary position embedding (https://arxiv.org/abs/2104.09864), of all layers or some."""

    pairs: OrAuto[Literal["neighbours", "halves"]] = numerics("auto")
    """What is turned together: elements 2p and 2p + 1 of a head in fp32, or p and p + head_dim / 2 in the dtype of the activations."""
    pattern: OrAuto[Positions] = numerics("auto", examples=[["rope", "rope", "rope", "none"]])
    """Which layers have RoPE, from the first on, over and over; the others know no positions but the order that the mask gives."""


class IngredientsFeedForwardConfig(FeedForwardConfig):
    """SwiGLU of the dense layers: hidden_dim, or the rule int(multiplier * int(8 * dim / 3)) rounded up to multiple_of."""

    bias: OrAuto[bool] = numerics("auto")
    """Whether its three matrices have biases."""


class IngredientsMoeConfig(MoeConfig):
    """Mixture of experts of SwiGLU, or of gpt-oss's clamped SwiGLU with biases where `swiglu_limit` is set."""

    swiglu_limit: OrAuto[PositiveFloat] | None = numerics("auto", examples=[7.0])
    """Gates are cut off above it, and what they are multiplied by beyond +- it: (clamp(u) + 1) g sigmoid(alpha g); null: SwiGLU."""
    swiglu_alpha: OrAuto[PositiveFloat] | None = numerics("auto", examples=[1.702])
    """Factor on the gate within the sigmoid of clamped SwiGLU; `auto` is 1.702 for that, null for SwiGLU."""


class IngredientsConfig(GroupedQueryConfig):
    """A pre-norm decoder from ingredients: norms, grouped-query attention, positions, SwiGLU or experts, each by layer."""

    name: Literal["decoder"] = bookkeeping("decoder")
    builds: ClassVar = "titanrun.models.decoder.model:ComposedDecoder"
    follows: ClassVar = (
        GroupedQueryConfig.follows
        | {("n_kv_heads",), ("head_dim",), ("feed_forward", "hidden_dim"), ("moe", "swiglu_alpha")}
        | {("attention", "latent", field) for field in ("q_lora_rank", "norm_eps")}
        | {("moe", field) for field in PLAIN_EXPERTS}
    )
    norm: OrAuto[Literal["rms", "layer"]] = numerics("auto")
    """Norms of the stream: RMSNorm, or LayerNorm without bias."""
    post_norms: OrAuto[bool] = numerics("auto")
    """Whether what attention and the hidden part give is normalised too, before it is added to the stream."""
    logit_soft_cap: OrAuto[PositiveFloat] | None = numerics("auto", examples=[30.0])
    """What logits approach and never exceed, c tanh(x / c); null: no cap."""
    hidden_pattern: OrAuto[HiddenParts] = numerics("auto", examples=[["dense", "experts"]])
    """Which layers are dense and which have experts, from the first on, over and over; without effect where `moe` is null."""
    attention: IngredientsAttentionConfig = section(IngredientsAttentionConfig)
    rope: IngredientsRopeConfig = section(IngredientsRopeConfig)
    feed_forward: IngredientsFeedForwardConfig = section(IngredientsFeedForwardConfig)
    moe: OrAuto[IngredientsMoeConfig] | None = component("auto")
    """The experts of the layers that have some; null: all layers are dense."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The ingredients of a model of transformers that one of the families reads."""
        return read_sizes(written, FAMILIES)

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """Key and value heads, head width, feed-forward width, the plainest experts, latent attention's own, and the output head's std,
        where undecided."""
        sizes = with_plain_latent(super().derived(sizes))
        sizes["moe"] = with_plain_experts(sizes["moe"])
        return with_plain_widths(sizes)

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads that do not divide, patterns that no layer follows, and ingredients that exclude each other."""
        dim, n_heads = sizes["dim"], sizes["n_heads"]
        if isinstance(sizes["attention"]["latent"], dict):
            # no head has to be turned as a whole, or shared
            problems = (
                latent_conflicts(sizes)
                + super(GroupedQueryConfig, cls).conflicts(sizes)
                + rope_conflicts(sizes["rope"])
            )
            return (
                problems
                + pattern_conflicts(sizes)
                + attention_conflicts(sizes["attention"])
                + expert_conflicts(sizes)
            )
        if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads) and dim % n_heads:
            return [
                conflict(
                    "n_heads",
                    f"dim {dim} cannot be split over {n_heads} heads",
                    "change one of them, or write head_dim",
                )
            ]
        problems = super().conflicts(cls.derived(sizes)) + rope_conflicts(sizes["rope"])
        return (
            problems
            + pattern_conflicts(sizes)
            + attention_conflicts(sizes["attention"])
            + expert_conflicts(sizes)
        )

    def has_experts(self, layer: int) -> bool:
        """Whether the hidden part of a layer is a mixture of experts."""
        return (
            decided(self.moe) is not None
            and in_turn(decided(self.hidden_pattern), layer) == "experts"
        )

    def uses_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys."""
        return in_turn(decided(self.rope.pattern), layer) == "rope"

    def window(self, layer: int) -> int | None:
        """Tokens that a query of a layer sees; None without a limit."""
        return (
            decided(self.attention.window)
            if in_turn(decided(self.attention.window_pattern), layer) == "window"
            else None
        )

    def routed_experts(self) -> int:
        """Experts of a layer that a router chooses from; 0 for a dense model."""
        return super().routed_experts() if self.expert_layer_count() else 0

    def turned_width(self) -> int:
        """Width of what RoPE turns of a query or key."""
        latent = decided(self.attention.latent)
        return decided(self.head_dim) if latent is None else decided(latent.qk_rope_head_dim)

    def heads(self) -> dict[str, int]:
        """Attention heads; latent attention has keys and values for each."""
        found = super().heads()
        return found if decided(self.attention.latent) is None else {"n_heads": found["n_heads"]}

    def attention_shapes(self) -> Shapes:
        """Name and shape of every parameter of one layer's attention."""
        latent = decided(self.attention.latent)
        if latent is not None:
            return latent_shapes(latent, dim=decided(self.dim), heads=decided(self.n_heads))
        attention, shapes = self.attention, super().attention_shapes()
        biased = {"none": (), "qkv": ("wq", "wk", "wv"), "all": ("wq", "wk", "wv", "wo")}[
            decided(attention.bias)
        ]
        found: Shapes = (
            {"attention.sinks": (decided(self.n_heads),)} if decided(attention.sinks) else {}
        )
        for name, shape in shapes.items():
            found[name] = shape
            if name.split(".")[1] in biased:
                found[name.replace("weight", "bias")] = shape[:1]
        norms = (
            ("attention.q_norm.weight", "attention.k_norm.weight")
            if decided(attention.qk_norm)
            else ()
        )
        return found | dict.fromkeys(norms, (decided(self.head_dim),))

    def feed_forward_shapes(self) -> Shapes:
        """Name and shape of every parameter of a dense layer's SwiGLU."""
        found: Shapes = {}
        for name, shape in super().feed_forward_shapes().items():
            found[name] = shape
            if decided(self.feed_forward.bias):
                found[name.replace("weight", "bias")] = shape[:1]
        return found

    def expert_shapes(self) -> Shapes:
        """Name and shape of every parameter of a mixture of experts."""
        moe, shapes = decided(self.moe), super().expert_shapes()
        assert moe is not None
        return (
            shapes
            if decided(moe.swiglu_limit) is None
            else clamped_expert_shapes(shapes, moe, decided(self.dim))
        )

    def layer_shapes(self, *, with_experts: bool) -> Shapes:
        """Name and shape of every parameter of one layer."""
        names = (
            ("attention_post_norm.weight", "ffn_post_norm.weight")
            if decided(self.post_norms)
            else ()
        )
        return super().layer_shapes(with_experts=with_experts) | dict.fromkeys(
            names, (decided(self.dim),)
        )

    def kept_by_attention(self) -> int:
        """As without norms, and normalised queries and keys once more; of latent attention what that keeps."""
        latent = decided(self.attention.latent)
        if latent is not None:
            return kept_by_latent_attention(latent, heads=decided(self.n_heads))
        return super().kept_by_attention() + (
            sum(self.projection_widths()) if decided(self.attention.qk_norm) else 0
        )

    def key_value_width(self) -> int:
        """Width of the keys of all heads of one layer, plus that of the values."""
        latent = decided(self.attention.latent)
        return (
            super().key_value_width()
            if latent is None
            else latent_key_value_width(latent, heads=decided(self.n_heads))
        )

    def attention_width(self) -> int:
        """Key width plus value width of all query heads of all layers."""
        return (
            super().attention_width()
            if decided(self.attention.latent) is None
            else self.layer_count() * self.key_value_width()
        )

    def kept_by_kind(self, with_experts: bool) -> tuple[int, int]:
        """Norms behind the parts keep what these give; clamping keeps gate and value once more, and the sum with one."""
        stream, split = super().kept_by_kind(with_experts)
        moe = decided(self.moe)
        clamped = moe is not None and with_experts and decided(moe.swiglu_limit) is not None
        behind = 2 * decided(self.dim) if decided(self.post_norms) else 0
        return stream + behind, split + (
            3 * decided(moe.top_k) * decided(moe.hidden_dim) if moe is not None and clamped else 0
        )

    def export_problems(self) -> list[Problem]:
        """The ingredients that the nearest family with a class in transformers does not have, and what that family cannot export."""
        family, problems = nearest(self)
        return problems or self.as_family(family).export_problems()

    def as_family(self, family: str) -> ModelConfig:
        """The same model in the config of a family that has all its ingredients."""
        chosen = FAMILIES[family]
        return chosen.model_validate(spell_out(chosen.model_validate(family_sizes(self, family))))


def with_plain_experts(moe: Any) -> Any:
    """model.moe with the plainest value where one is undecided."""
    if not isinstance(moe, dict):
        return moe
    decided_here = {
        field: PLAIN_EXPERTS[field] if value == AUTO and field in PLAIN_EXPERTS else value
        for field, value in moe.items()
    }
    if decided_here["swiglu_alpha"] == AUTO:
        decided_here["swiglu_alpha"] = (
            None if decided_here["swiglu_limit"] is None else ALPHA_OF_GPT_OSS
        )
    return decided_here


def with_plain_latent(sizes: Sizes) -> Sizes:
    """The sizes with the head width that latent attention makes, queries that are not compressed, and the epsilon of all norms, where
    these are undecided."""
    latent = sizes["attention"]["latent"]
    if not isinstance(latent, dict):
        return sizes
    latent = {
        **latent,
        "q_lora_rank": None if latent["q_lora_rank"] == AUTO else latent["q_lora_rank"],
    }
    latent["norm_eps"] = sizes["norm_eps"] if latent["norm_eps"] == AUTO else latent["norm_eps"]
    width = (latent["qk_nope_head_dim"], latent["qk_rope_head_dim"])
    head_dim = sum(width) if sizes["head_dim"] == AUTO and AUTO not in width else sizes["head_dim"]
    return {**sizes, "head_dim": head_dim, "attention": {**sizes["attention"], "latent": latent}}


def latent_conflicts(sizes: Sizes) -> list[Problem]:
    """What latent attention has not: norms, biases and sinks of its own heads, shared heads, another head width than its parts make, and
    an odd part for RoPE."""
    attention, n_heads, problems = sizes["attention"], sizes["n_heads"], []
    for field, plain in (("qk_norm", False), ("bias", "none"), ("sinks", False)):
        if attention[field] not in (AUTO, plain):
            message = f"latent attention has no {field}, and attention.{field} is {shorten(attention[field])}"
            problems.append(
                conflict(
                    f"attention.{field}",
                    message,
                    f"use {shorten(plain)}, or attention.latent: null",
                )
            )
    still, turned = attention["latent"]["qk_nope_head_dim"], attention["latent"]["qk_rope_head_dim"]
    if turned != AUTO and turned % 2:
        message = f"qk_rope_head_dim {turned} is odd, and RoPE turns pairs"
        problems.append(
            conflict("attention.latent.qk_rope_head_dim", message, "use an even qk_rope_head_dim")
        )
    made = {"n_kv_heads": n_heads, "head_dim": AUTO if AUTO in (still, turned) else still + turned}
    for field, value in made.items():
        if AUTO not in (value, sizes[field]) and sizes[field] != value:
            message = f"latent attention has {field} {value} by its other sizes, and here it is {sizes[field]}"
            problems.append(conflict(field, message, f"use {value}, or leave it out"))
    return problems


def in_turn(pattern: tuple[str, ...], layer: int) -> str:
    """What a layer is, where layers follow a pattern over and over."""
    return pattern[layer % len(pattern)]


def pattern_conflicts(sizes: Sizes) -> list[Problem]:
    """Patterns that are empty or longer than the model, and those of what the model does not have."""
    attention, problems = sizes["attention"], []
    patterns = {
        "attention.window_pattern": attention["window_pattern"],
        "rope.pattern": sizes["rope"]["pattern"],
        "hidden_pattern": sizes["hidden_pattern"],
    }
    empty = [field for field, pattern in patterns.items() if not pattern]
    if empty:
        return [
            conflict(
                empty[0],
                f"{empty[0]} says what no layer is",
                "write a word for each kind of layer, or leave it out",
            )
        ]
    for field, pattern in patterns.items():
        if AUTO not in (pattern, sizes["n_layers"]) and len(pattern) > sizes["n_layers"]:
            message = (
                f"{field} says what {len(pattern)} layers are, and there are {sizes['n_layers']}"
            )
            problems.append(conflict(field, message, f"use {sizes['n_layers']} words at most"))
    for field, pattern, word, has in (
        ("attention.window_pattern", attention["window_pattern"], "window", attention["window"]),
        ("hidden_pattern", sizes["hidden_pattern"], "experts", sizes["moe"]),
    ):
        if AUTO in (pattern, has):
            continue
        owner = {"window": "attention.window", "experts": "moe"}[word]
        if has is not None and word not in pattern:
            problems.append(
                conflict(
                    field,
                    f"no layer has what {owner} describes",
                    f"write {word} into {field}, or {owner}: null",
                )
            )
        if has is None and len(set(pattern)) > 1:
            problems.append(
                conflict(
                    field,
                    f"some layers are to have {word}, and {owner} is null",
                    f"set {owner}, or leave {field} out",
                )
            )
    return problems


def attention_conflicts(attention: Sizes) -> list[Problem]:
    """What the kernel of varlen attention cannot compute."""
    asked = [name for name in ("sinks", "soft_cap") if attention[name] not in (AUTO, None, False)]
    if attention["backend"] != "varlen" or not asked:
        return []
    message = f"varlen attention does not compute attention.{asked[0]}"
    return [conflict("attention.backend", message, "use sdpa or flex")]


def expert_conflicts(sizes: Sizes) -> list[Problem]:
    """Halves of clamped SwiGLU, and biases of dense layers where there are none."""
    moe, problems = sizes["moe"], []
    if not isinstance(moe, dict):
        return []
    limit, alpha = moe["swiglu_limit"], moe["swiglu_alpha"]
    if AUTO not in (limit, alpha) and (limit is None) != (alpha is None):
        absent = "swiglu_limit" if limit is None else "swiglu_alpha"
        problems.append(
            conflict(
                f"moe.{absent}",
                "clamped SwiGLU needs both swiglu_limit and swiglu_alpha",
                "write both, or null for both",
            )
        )
    if (
        sizes["feed_forward"]["bias"] is True
        and sizes["hidden_pattern"] != AUTO
        and "dense" not in sizes["hidden_pattern"]
    ):
        message = "feed_forward.bias is of dense layers, and every layer has experts"
        problems.append(
            conflict("feed_forward.bias", message, "use false, or write dense into hidden_pattern")
        )
    return problems
