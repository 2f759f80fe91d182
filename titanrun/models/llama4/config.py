"""Config of the llama4 family, and what follows from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import AUTO, NonNegativeFloat, NonNegativeInt, OrAuto, PositiveInt
from titanrun.models.shared.config import (
    FAR_TOO_WIDE,
    PAGED_BY_VLLM,
    AttentionConfig,
    DecoderInitConfig,
    Feature,
    FeedForwardConfig,
    MoeConfig,
    RopeConfig,
    Sizes,
    decided,
    swiglu_width,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, conflict, rope_conflicts
from titanrun.models.shared.huggingface_config import HuggingFaceConfig
from titanrun.models.shared.huggingface_decoder import read_decoder, read_rope

# model_type of the text model, and of one that sees pictures
TEXT_TYPE, WHOLE_TYPE = "llama4_text", "llama4"
# what config.json leaves unsaid, since transformers has no choice there
EXPERTS_OF_TRANSFORMERS = {
    "num_shared_experts": 1,
    "score_func": "sigmoid",
    "route_norm": False,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": True,
    "num_expert_groups": None,
    "num_limited_groups": None,
}
# the bias that balances experts is titanrun's own
LOAD_BALANCE_COEFF = 1e-3
# keys of losses and of code that the forward pass does not read
UNREAD = (
    "for_llm_compressor",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
)
# of a model that sees pictures, what is not its text model
PICTURES = ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index")


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
    lacks: ClassVar[frozenset[Feature]] = frozenset({"paged attention"})
    instead: ClassVar[dict[Feature, str]] = {"paged attention": PAGED_BY_VLLM}
    follows: ClassVar = GroupedQueryConfig.follows | {
        ("head_dim",),
        ("feed_forward", "hidden_dim"),
        ("moe", "hidden_dim"),
    }
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head; `auto` is dim / n_heads."""
    interleave_moe_layer_step: OrAuto[PositiveInt] = numerics("auto", unit="layers", examples=[2])
    """n, where every n-th layer is a mixture of experts, the n-th first; the others are one SwiGLU."""
    every_n_layers_nope: OrAuto[PositiveInt] | None = numerics("auto", unit="layers", examples=[4])
    """One layer of so many goes without RoPE and sees whole rows; null: none does."""
    first_nope_layer: OrAuto[NonNegativeInt] = numerics("auto", examples=[3])
    """The first layer without RoPE, counted from zero: 0 in torchtitan's flavors, every_n_layers_nope - 1 in Meta's releases."""
    fixed_attn_block_size: OrAuto[PositiveInt] | None = numerics(
        "auto", unit="tokens", examples=[8192]
    )
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
            return [
                conflict(
                    "n_heads",
                    f"dim {dim} cannot be split over {n_heads} heads",
                    "change one of them, or write head_dim",
                )
            ]
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
        return super().kept_by_attention() + (
            sum(self.projection_widths()) if decided(self.qk_norm) else 0
        )

    def export_problems(self) -> list[Problem]:
        """Experts that are chosen, weighted or shared in another way than in transformers."""
        problems = []
        for field, theirs in EXPERTS_OF_TRANSFORMERS.items():
            ours = getattr(self.moe, field)
            if ours != theirs:
                message = f"transformers' Llama4 has no experts with {field}: {shorten(ours)}"
                problems.append(
                    conflict(f"moe.{field}", message, f"use {shorten(theirs)}, or export nothing")
                )
        return problems


def expert_width(dim: int, *, share: int, multiplier: float | None, multiple_of: int) -> int:
    """Hidden width of an expert, so that the `share` of them that a token meets cost as much as one dense layer, rounded up."""
    width = swiglu_width(dim, multiplier=multiplier, multiple_of=1)
    return min(-(-(width // max(share, 1)) // multiple_of) * multiple_of, int(FAR_TOO_WIDE))


def nope_conflicts(sizes: Sizes) -> list[Problem]:
    """What cannot be true together of layers without RoPE."""
    every, first, layers, scale = (
        sizes[key] for key in ("every_n_layers_nope", "first_nope_layer", "n_layers", "attn_scale")
    )
    if every is None and scale not in (AUTO, 0):
        message = "attn_scale is for layers without RoPE, and all layers have it"
        return [conflict("attn_scale", message, "use 0, or set every_n_layers_nope")]
    if every == 1:
        return [
            conflict(
                "every_n_layers_nope",
                "no layer would have RoPE",
                "use 2 or more, or null for RoPE in all layers",
            )
        ]
    if every is not None and AUTO not in (every, first) and first >= every:
        message = (
            f"one of the first {every} layers goes without RoPE, and layer {first} is none of them"
        )
        return [conflict("first_nope_layer", message, f"use 0 to {every - 1}")]
    if every is not None and AUTO not in (first, layers) and first >= layers:
        message = f"layer {first} goes without RoPE, and the last layer is {layers - 1}"
        return [
            conflict(
                "first_nope_layer",
                message,
                f"use {layers - 1} at most, or every_n_layers_nope: null",
            )
        ]
    return []


def read_sizes(written: dict[str, Any]) -> Sizes:
    """The sizes in a config.json; absent keys have transformers' defaults. Raises ProblemsFound."""
    file = HuggingFaceConfig(written, family="llama4")
    if file.only("model_type", TEXT_TYPE, WHOLE_TYPE) == TEXT_TYPE:
        sizes = read_text_model(file)
    else:
        for key in PICTURES:
            file.rest.pop(key, None)
        text = file.within_key("text_config")
        text.only("model_type", TEXT_TYPE)
        sizes = {
            **read_text_model(text),
            "tie_word_embeddings": file.flag("tie_word_embeddings", False),
        }
        file.inner += text.inner
    file.close()
    return sizes


def read_text_model(file: HuggingFaceConfig) -> Sizes:
    """The sizes of the text model; what is wrong stays in `file`."""
    for key in UNREAD:
        file.rest.pop(key, None)
    sizes = read_decoder(file, max_seq_len=131072, norm_eps=1e-5)
    layers = sizes["n_layers"] or 0
    every, first = read_nope(file, layers)
    has_rope = [every is None or layer % every != first for layer in range(layers)]
    tuned = file.take(
        "attn_temperature_tuning", True, lambda value: type(value) in (bool, int), "true or false"
    )
    scale = file.not_negative("attn_scale", 0.1)
    sizes |= {
        "n_kv_heads": file.whole(
            "num_key_value_heads", sizes["n_heads"] if "num_key_value_heads" in file.rest else 8
        ),
        "head_dim": file.whole("head_dim", AUTO if "head_dim" in file.rest else 128),
        "interleave_moe_layer_step": read_moe_step(file, layers),
        "every_n_layers_nope": every,
        "first_nope_layer": first,
        "fixed_attn_block_size": read_block(file, has_rope),
        "qk_norm": file.flag("use_qk_norm", True),
        # only layers without RoPE read it
        "attn_scale": scale if tuned and every is not None else 0.0,
        "floor_scale": file.whole("floor_scale", 8192),
        "rope": read_rope(file, "llama3", max_seq_len=sizes["max_seq_len"], theta=500000.0),
        "feed_forward": {"hidden_dim": file.whole("intermediate_size_mlp", 16384)},
        "moe": {
            "num_experts": file.whole("num_local_experts", 16),
            "top_k": file.whole("num_experts_per_tok", 1),
            "hidden_dim": file.whole("intermediate_size", 8192),
            "load_balance_coeff": LOAD_BALANCE_COEFF,
            **EXPERTS_OF_TRANSFORMERS,
        },
    }
    return sizes


def read_nope(file: HuggingFaceConfig, layers: int) -> tuple[int | None, int]:
    """every_n_layers_nope and first_nope_layer: of the list of layers with RoPE, which must have a rhythm, or else of the interval."""
    every: int = file.whole("no_rope_layer_interval", 4)
    flags = file.take("no_rope_layers", [], is_list_of_bits, "a list of 0 and 1")
    without = [layer for layer, has_rope in enumerate(flags[:layers]) if not has_rope]
    if not flags:
        without = list(range(every - 1, layers, every))
    if not without:
        return None, 0
    first = without[0]
    every = without[1] - first if len(without) > 1 else max(first + 1, layers - first, 2)
    if (
        without != list(range(first, layers, every))
        or first >= every
        or every < 2
        or 0 < len(flags) < layers
    ):
        key = "no_rope_layers" if flags else "no_rope_layer_interval"
        file.refuse(
            f"{file.place(key)} names other layers than one of each two or more, and llama4 has only that"
        )
    return every, first


def is_list_of_bits(value: Any) -> bool:
    """Whether it is a list of 0 and 1, or of false and true."""
    return isinstance(value, list) and all(item in (0, 1) for item in value)


def read_moe_step(file: HuggingFaceConfig, layers: int) -> int:
    """interleave_moe_layer_step; transformers goes by the list of layers with experts where that is there, which must have a rhythm."""
    step: int = file.whole("interleave_moe_layer_step", 1)
    named = file.rest.get("moe_layers")
    if isinstance(named, list) and named and type(named[0]) is int:
        step = named[0] + 1
    file.only("moe_layers", list(range(step - 1, layers, step)))
    return step


def read_block(file: HuggingFaceConfig, has_rope: list[bool]) -> int | None:
    """fixed_attn_block_size, unless layer_types says that all layers see whole rows."""
    in_blocks = ["chunked_attention" if rope else "full_attention" for rope in has_rope]
    is_nowhere = (
        file.only("layer_types", in_blocks, ["full_attention"] * len(has_rope)) != in_blocks
    )
    block: int = file.whole("attention_chunk_size", 8192)
    return None if is_nowhere else block
