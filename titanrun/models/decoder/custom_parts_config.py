"""Config sections of a custom decoder, their defaults and their conflicts."""

from typing import Any, Literal, TypeAlias

from titanrun.config.base import Config
from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import component, numerics
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import AttentionConfig, FeedForwardConfig, MoeConfig, Sizes
from titanrun.models.shared.decoder_config import build_size_problem
from titanrun.models.shared.rope_config import RopeConfig

# sizes of experts that a recipe leaves undecided
DEFAULT_EXPERT_SIZES: Sizes = {
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
# makes clamped SwiGLU close to a GELU
GPT_OSS_SWIGLU_ALPHA = 1.702
WindowPattern: TypeAlias = tuple[Literal["window", "full"], ...]
PositionPattern: TypeAlias = tuple[Literal["rope", "none"], ...]
HiddenPattern: TypeAlias = tuple[Literal["dense", "experts"], ...]


class LatentAttentionConfig(Config):
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434).

    One short vector per token is projected to the keys and values of all heads.
    """

    q_lora_rank: OrAuto[PositiveInt] | None = numerics("auto", examples=[1536])
    """Width to which queries are compressed. `auto` is null: queries are not compressed."""
    kv_lora_rank: OrAuto[PositiveInt] = numerics("auto", examples=[512])
    """Width to which keys and values are compressed together."""
    qk_nope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the part of a query or key without RoPE."""
    qk_rope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[64])
    """Width of the part of a query or key with RoPE. All heads share that part of the key."""
    v_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the value of one head."""
    norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-6])
    """Epsilon of the norms of compressed queries, and of compressed keys and values. `auto` is that
    of all norms.
    """


class CustomAttentionConfig(AttentionConfig):
    """Attention scores, masks, and attention parameters in addition to the projections."""

    qk_norm: OrAuto[bool] = numerics("auto")
    """Whether queries and keys are normalized head by head, before RoPE."""
    bias: OrAuto[Literal["none", "qkv", "all"]] = numerics("auto")
    """Which projections have a bias: none, those of queries, keys and values, or the output
    projection as well.
    """
    sinks: OrAuto[bool] = numerics("auto")
    """Whether each query head has an attention sink: the score of a key without a token, whose
    value is zero.
    """
    window: OrAuto[PositiveInt] | None = numerics("auto", unit="tokens", examples=[128])
    """Number of tokens that a query sees, including itself, in the layers that `window_pattern`
    selects. null: all earlier tokens.
    """
    window_pattern: OrAuto[WindowPattern] = numerics("auto", examples=[["window", "full"]])
    """Repeating pattern of layers with and without the window, from the first layer on."""
    soft_cap: OrAuto[PositiveFloat] | None = numerics("auto", examples=[50.0])
    """Limit c of the scores, which become c tanh(s / c). null: no cap."""
    latent: OrAuto[LatentAttentionConfig] | None = component("auto")
    """Keys and values projected from a short vector, with scores that YaRN scales up. null:
    grouped-query attention.
    """


class CustomRopeConfig(RopeConfig):
    """Rotary position embedding (https://arxiv.org/abs/2104.09864), of all layers or some."""

    pairs: OrAuto[Literal["neighbours", "halves"]] = numerics("auto")
    """Elements that are rotated together. neighbours: 2p and 2p + 1 of a head, in fp32. halves: p
    and p + head_dim / 2, in the dtype of the activations.
    """
    pattern: OrAuto[PositionPattern] = numerics("auto", examples=[["rope", "rope", "rope", "none"]])
    """Repeating pattern of layers with and without RoPE, from the first layer on. Layers without
    RoPE get positions only from the mask.
    """


class CustomFeedForwardConfig(FeedForwardConfig):
    """SwiGLU width of the dense layers, given as hidden_dim or by a rule.

    The rule is int(multiplier * int(8 * dim / 3)) rounded up to multiple_of.
    """

    bias: OrAuto[bool] = numerics("auto")
    """Whether its three matrices have biases."""


class CustomMoeConfig(MoeConfig):
    """Mixture of experts of SwiGLU, or of gpt-oss's clamped SwiGLU if `swiglu_limit` is set.

    Clamped SwiGLU has biases.
    """

    swiglu_limit: OrAuto[PositiveFloat] | None = numerics("auto", examples=[7.0])
    """Upper limit of gates, and limit +- of the values that they are multiplied by: (clamp(u) + 1)
    g sigmoid(alpha g). null: SwiGLU.
    """
    swiglu_alpha: OrAuto[PositiveFloat] | None = numerics("auto", examples=[1.702])
    """Factor on the gate within the sigmoid of clamped SwiGLU. `auto` is 1.702 for clamped SwiGLU,
    null for SwiGLU.
    """


def fill_default_expert_sizes(moe: Any) -> Any:
    """Return model.moe with undecided values set to their defaults."""
    if not isinstance(moe, dict):
        return moe
    filled = {
        field: DEFAULT_EXPERT_SIZES[field]
        if value == AUTO and field in DEFAULT_EXPERT_SIZES
        else value
        for field, value in moe.items()
    }
    if filled["swiglu_alpha"] == AUTO:
        filled["swiglu_alpha"] = None if filled["swiglu_limit"] is None else GPT_OSS_SWIGLU_ALPHA
    return filled


def fill_default_latent_sizes(sizes: Sizes) -> Sizes:
    """Fill undecided sizes that latent attention determines.

    These are the head width, queries that are not compressed, and the epsilon of all norms.
    """
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


def find_latent_problems(sizes: Sizes) -> list[Problem]:
    """Find sizes that latent attention does not support.

    These are norms, biases and sinks of its heads, shared heads, a head width other than the sum of
    its parts, and an odd part for RoPE.
    """
    attention, n_heads, problems = sizes["attention"], sizes["n_heads"], []
    for field, plain in (("qk_norm", False), ("bias", "none"), ("sinks", False)):
        if attention[field] not in (AUTO, plain):
            message = (
                f"latent attention does not support {field}, but attention.{field} is "
                f"{format_short_value(attention[field])}"
            )
            problems.append(
                build_size_problem(
                    f"attention.{field}",
                    message,
                    f"use {format_short_value(plain)}, or attention.latent: null",
                )
            )
    still, turned = attention["latent"]["qk_nope_head_dim"], attention["latent"]["qk_rope_head_dim"]
    if turned != AUTO and turned % 2:
        message = f"qk_rope_head_dim {turned} is odd, but RoPE rotates pairs"
        problems.append(
            build_size_problem(
                "attention.latent.qk_rope_head_dim", message, "use an even qk_rope_head_dim"
            )
        )
    made = {"n_kv_heads": n_heads, "head_dim": AUTO if AUTO in (still, turned) else still + turned}
    for field, value in made.items():
        if AUTO not in (value, sizes[field]) and sizes[field] != value:
            message = (
                f"latent attention has {field} {value} by its other sizes, but {field} is "
                f"{sizes[field]}"
            )
            problems.append(build_size_problem(field, message, f"use {value}, or remove it"))
    return problems


def get_pattern_item(pattern: tuple[str, ...], layer: int) -> str:
    """Return the item of a repeating pattern for a layer."""
    return pattern[layer % len(pattern)]


def find_pattern_problems(sizes: Sizes) -> list[Problem]:
    """Find patterns that are empty, longer than the model, or for a part the model lacks."""
    attention, problems = sizes["attention"], []
    patterns = {
        "attention.window_pattern": attention["window_pattern"],
        "rope.pattern": sizes["rope"]["pattern"],
        "hidden_pattern": sizes["hidden_pattern"],
    }
    empty = [field for field, pattern in patterns.items() if not pattern]
    if empty:
        return [
            build_size_problem(
                empty[0],
                f"{empty[0]} is empty",
                "write one word per layer of the pattern, or remove it",
            )
        ]
    for field, pattern in patterns.items():
        if AUTO not in (pattern, sizes["n_layers"]) and len(pattern) > sizes["n_layers"]:
            message = (
                f"{field} describes {len(pattern)} layers, but n_layers is {sizes['n_layers']}"
            )
            problems.append(
                build_size_problem(field, message, f"use at most {sizes['n_layers']} words")
            )
    for field, pattern, word, has in (
        ("attention.window_pattern", attention["window_pattern"], "window", attention["window"]),
        ("hidden_pattern", sizes["hidden_pattern"], "experts", sizes["moe"]),
    ):
        if AUTO in (pattern, has):
            continue
        owner = {"window": "attention.window", "experts": "moe"}[word]
        if has is not None and word not in pattern:
            problems.append(
                build_size_problem(
                    field,
                    f"{owner} is set, but no layer uses it",
                    f"add {word} to {field}, or set {owner}: null",
                )
            )
        if has is None and len(set(pattern)) > 1:
            problems.append(
                build_size_problem(
                    field,
                    f"{field} contains {word}, but {owner} is null",
                    f"set {owner}, or remove {field}",
                )
            )
    return problems


def find_attention_problems(attention: Sizes) -> list[Problem]:
    """Find attention features that varlen attention does not support."""
    asked = [name for name in ("sinks", "soft_cap") if attention[name] not in (AUTO, None, False)]
    if attention["backend"] != "varlen" or not asked:
        return []
    message = f"varlen attention does not support attention.{asked[0]}"
    return [build_size_problem("attention.backend", message, "use sdpa or flex")]


def find_expert_problems(sizes: Sizes) -> list[Problem]:
    """Find incomplete clamped SwiGLU, and biases of dense layers without a dense layer."""
    moe, problems = sizes["moe"], []
    if not isinstance(moe, dict):
        return []
    limit, alpha = moe["swiglu_limit"], moe["swiglu_alpha"]
    if AUTO not in (limit, alpha) and (limit is None) != (alpha is None):
        absent = "swiglu_limit" if limit is None else "swiglu_alpha"
        problems.append(
            build_size_problem(
                f"moe.{absent}",
                "clamped SwiGLU needs both swiglu_limit and swiglu_alpha",
                "set both, or null for both",
            )
        )
    if (
        sizes["feed_forward"]["bias"] is True
        and sizes["hidden_pattern"] != AUTO
        and "dense" not in sizes["hidden_pattern"]
    ):
        message = "feed_forward.bias applies to dense layers, but every layer has experts"
        problems.append(
            build_size_problem(
                "feed_forward.bias", message, "use false, or add dense to hidden_pattern"
            )
        )
    return problems
