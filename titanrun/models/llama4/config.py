"""Config of the llama4 family, and what follows from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import AUTO, NonNegativeFloat, NonNegativeInt, OrAuto, PositiveInt
from titanrun.models.llama4.huggingface_sizes import EXPERTS_OF_TRANSFORMERS, TEXT_TYPE, WHOLE_TYPE, read_sizes
from titanrun.models.shared.config import (
    FAR_TOO_WIDE,
    AttentionConfig,
    DecoderInitConfig,
    FeedForwardConfig,
    MoeConfig,
    RopeConfig,
    Sizes,
    decided,
    swiglu_width,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, conflict, rope_conflicts


class Llama4MoeConfig(MoeConfig):
    """Mixture of experts whose width may follow from that of dense layers."""

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[8192])
    """Width of an expert's hidden layer; `auto` is the rule of feed_forward with what it gives before rounding divided by
    top_k + num_shared_experts."""


class Llama4Config(GroupedQueryConfig):
    """Llama 4, its text model: pre-norm decoder with experts in every n-th layer; some layers go without RoPE and see whole rows, the
    others may see only their own block of a row."""

    name: Literal["llama4"] = bookkeeping("llama4")
    builds: ClassVar = "titanrun.models.llama4.model:Llama4"
    huggingface_types: ClassVar = (TEXT_TYPE, WHOLE_TYPE)
    follows: ClassVar = GroupedQueryConfig.follows | {("head_dim",), ("feed_forward", "hidden_dim"), ("moe", "hidden_dim")}
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head; `auto` is dim / n_heads."""
    interleave_moe_layer_step: OrAuto[PositiveInt] = numerics("auto", unit="layers", examples=[2])
    """n, where every n-th layer is a mixture of experts, the n-th first; the others are one SwiGLU."""
    every_n_layers_nope: OrAuto[PositiveInt] | None = numerics("auto", unit="layers", examples=[4])
    """One layer of so many goes without RoPE and sees whole rows; null: none does."""
    first_nope_layer: OrAuto[NonNegativeInt] = numerics("auto", examples=[3])
    """The first layer without RoPE, counted from zero: 0 in torchtitan's flavors, every_n_layers_nope - 1 in Meta's releases."""
    fixed_attn_block_size: OrAuto[PositiveInt] | None = numerics("auto", unit="tokens", examples=[8192])
    """Layers with RoPE cut rows into blocks of so many tokens, which do not see each other; null: they see whole rows."""
    qk_norm: OrAuto[bool] = numerics("auto")
    """Whether layers with RoPE divide queries and keys by their root mean square, head by head, after RoPE."""
    attn_scale: OrAuto[NonNegativeFloat] = numerics("auto", examples=[0.1])
    """How much attention of layers without RoPE sharpens along a row: queries times 1 + attn_scale ln(1 + (position + 1) // floor_scale);
    0: it does not."""
    floor_scale: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[8192])
    """Tokens after which attn_scale has its first effect, and each further one."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: FeedForwardConfig = section(FeedForwardConfig)
    moe: Llama4MoeConfig = section(Llama4MoeConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of transformers' Llama4ForCausalLM, or of the text model in a Llama4ForConditionalGeneration."""
        return read_sizes(written)

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """Head width, widths of dense layers and of experts, and the output head's std, where they are undecided."""
        sizes = super().derived(sizes)
        dim, dense, moe = sizes["dim"], sizes["feed_forward"], sizes["moe"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, sizes["n_heads"]):
            sizes["head_dim"] = dim // sizes["n_heads"]
        rule = {"multiplier": dense["ffn_dim_multiplier"], "multiple_of": dense["multiple_of"]}
        if AUTO in (dim, *rule.values()):
            return sizes
        if dense["hidden_dim"] == AUTO:
            dense["hidden_dim"] = swiglu_width(dim, **rule)
        chosen, shared = moe["top_k"], moe["num_shared_experts"]
        if moe["hidden_dim"] == AUTO and AUTO not in (chosen, shared):
            moe["hidden_dim"] = expert_width(dim, share=chosen + shared, **rule)
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads that do not divide, patterns of layers that no layer fits, and what rope and moe cannot be."""
        dim, n_heads = sizes["dim"], sizes["n_heads"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads) and dim % n_heads:
            return [conflict("n_heads", f"dim {dim} cannot be split over {n_heads} heads", "change one of them, or write head_dim")]
        problems = super().conflicts(cls.derived(sizes)) + rope_conflicts(sizes["rope"])
        step, layers = sizes["interleave_moe_layer_step"], sizes["n_layers"]
        if AUTO not in (step, layers) and step > layers:
            message = f"one layer of {step} has experts, and there are {layers} layers"
            problems.append(conflict("interleave_moe_layer_step", message, f"use {layers} at most"))
        return problems + nope_conflicts(sizes)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's number, counted from one, is a multiple of the step."""
        return (layer + 1) % decided(self.interleave_moe_layer_step) == 0

    def uses_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys."""
        every = decided(self.every_n_layers_nope)
        return every is None or layer % every != decided(self.first_nope_layer)

    def block(self, layer: int) -> int | None:
        """Tokens of the blocks that a layer's attention does not leave; None where it sees whole rows."""
        return decided(self.fixed_attn_block_size) if self.uses_rope(layer) else None

    def kept_by_attention(self) -> int:
        """As without norms, and normalised queries and keys once more."""
        return super().kept_by_attention() + (sum(self.projection_widths()) if decided(self.qk_norm) else 0)

    def export_problems(self) -> list[Problem]:
        """Experts that are chosen, weighted or shared in another way than in transformers."""
        problems = []
        for field, theirs in EXPERTS_OF_TRANSFORMERS.items():
            ours = getattr(self.moe, field)
            if ours != theirs:
                message = f"transformers' Llama4 has no experts with {field}: {shorten(ours)}"
                problems.append(conflict(f"moe.{field}", message, f"use {shorten(theirs)}, or export nothing"))
        return problems


def expert_width(dim: int, *, share: int, multiplier: float | None, multiple_of: int) -> int:
    """Hidden width of an expert, so that the `share` of them that a token meets cost as much as one dense layer, rounded up."""
    width = swiglu_width(dim, multiplier=multiplier, multiple_of=1)
    return min(-(-(width // max(share, 1)) // multiple_of) * multiple_of, int(FAR_TOO_WIDE))


def nope_conflicts(sizes: Sizes) -> list[Problem]:
    """What cannot be true together of layers without RoPE."""
    every, first, layers, scale = (sizes[key] for key in ("every_n_layers_nope", "first_nope_layer", "n_layers", "attn_scale"))
    if every is None and scale not in (AUTO, 0):
        message = "attn_scale is for layers without RoPE, and all layers have it"
        return [conflict("attn_scale", message, "use 0, or set every_n_layers_nope")]
    if every == 1:
        return [conflict("every_n_layers_nope", "no layer would have RoPE", "use 2 or more, or null for RoPE in all layers")]
    if every is not None and AUTO not in (every, first) and first >= every:
        message = f"one of the first {every} layers goes without RoPE, and layer {first} is none of them"
        return [conflict("first_nope_layer", message, f"use 0 to {every - 1}")]
    if every is not None and AUTO not in (first, layers) and first >= layers:
        message = f"layer {first} goes without RoPE, and the last layer is {layers - 1}"
        return [conflict("first_nope_layer", message, f"use {layers - 1} at most, or every_n_layers_nope: null")]
    return []
