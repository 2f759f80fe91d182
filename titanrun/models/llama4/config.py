"""Config of the llama4 family, and quantities that follow from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, NonNegativeFloat, NonNegativeInt, OrAuto, PositiveInt
from titanrun.models.shared.config import (
    OVERSIZED_DIM,
    PAGED_ATTENTION_ALTERNATIVE,
    AttentionConfig,
    DecoderInitConfig,
    FeedForwardConfig,
    ModelFeature,
    MoeConfig,
    Sizes,
    compute_swiglu_hidden_dim,
    unwrap_auto,
)
from titanrun.models.shared.decoder_config import (
    GroupedQueryConfig,
    build_size_problem,
    find_rope_problems,
)
from titanrun.models.shared.huggingface_config import HuggingFaceConfigReader
from titanrun.models.shared.huggingface_decoder_config import read_decoder_sizes, read_rope_sizes
from titanrun.models.shared.rope_config import RopeConfig

# model_type of the text model, and of the multimodal model
TEXT_TYPE, WHOLE_TYPE = "llama4_text", "llama4"
# values that config.json does not contain, since transformers has no choice there
TRANSFORMERS_EXPERT_SIZES = {
    "num_shared_experts": 1,
    "score_func": "sigmoid",
    "route_norm": False,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": True,
    "num_expert_groups": None,
    "num_limited_groups": None,
}
# only titanrun has the bias that balances experts
LOAD_BALANCE_COEFF = 1e-3
# keys of losses and of code that the forward pass does not read
IGNORED_KEYS = (
    "for_llm_compressor",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
)
# keys of a multimodal model outside of its text model
IMAGE_KEYS = ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index")


class Llama4MoeConfig(MoeConfig):
    """Mixture of experts whose width may follow from that of dense layers."""

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[8192])
    """Width of an expert's hidden layer. `auto` applies the rule of feed_forward, with the width
    before rounding divided by top_k + num_shared_experts.
    """


class Llama4Config(GroupedQueryConfig):
    """Llama 4's text model: pre-norm decoder with experts in every n-th layer.

    Some layers have no RoPE and see whole sequences. The others may see only their own block of a
    sequence.
    """

    name: Literal["llama4"] = bookkeeping("llama4")
    builds: ClassVar = "titanrun.models.llama4.model:Llama4"
    huggingface_types: ClassVar = (TEXT_TYPE, WHOLE_TYPE)
    unsupported_features: ClassVar[frozenset[ModelFeature]] = frozenset({"paged attention"})
    alternative: ClassVar[dict[ModelFeature, str]] = {
        "paged attention": PAGED_ATTENTION_ALTERNATIVE
    }
    derived_fields: ClassVar = GroupedQueryConfig.derived_fields | {
        ("head_dim",),
        ("feed_forward", "hidden_dim"),
        ("moe", "hidden_dim"),
    }
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head. `auto` is dim / n_heads."""
    interleave_moe_layer_step: OrAuto[PositiveInt] = numerics("auto", unit="layers", examples=[2])
    """Interval n of the layers with experts: every n-th layer is a mixture of experts, starting
    with the n-th. The others are one SwiGLU.
    """
    every_n_layers_nope: OrAuto[PositiveInt] | None = numerics("auto", unit="layers", examples=[4])
    """Interval of the layers that have no RoPE and see whole sequences. null: all layers have RoPE.
    """
    first_nope_layer: OrAuto[NonNegativeInt] = numerics("auto", examples=[3])
    """First layer without RoPE, counted from zero: 0 in torchtitan's flavors, every_n_layers_nope -
    1 in Meta's releases.
    """
    fixed_attn_block_size: OrAuto[PositiveInt] | None = numerics(
        "auto", unit="tokens", examples=[8192]
    )
    """Block size of layers with RoPE. Tokens of different blocks of a sequence do not see each
    other. null: these layers see whole sequences.
    """
    qk_norm: OrAuto[bool] = numerics("auto")
    """Whether layers with RoPE divide queries and keys by their root mean square, head by head,
    after RoPE.
    """
    attn_scale: OrAuto[NonNegativeFloat] = numerics("auto", examples=[0.1])
    """How much attention of layers without RoPE sharpens along a sequence: queries times 1 +
    attn_scale ln(1 + (position + 1) // floor_scale). Set to 0 to disable.
    """
    floor_scale: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[8192])
    """Number of tokens after which attn_scale has its first effect, and each further one."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: FeedForwardConfig = section(FeedForwardConfig)
    moe: Llama4MoeConfig = section(Llama4MoeConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes in a config.json of transformers' Llama4ForCausalLM.

        The text model in a Llama4ForConditionalGeneration is read too.
        """
        return read_llama4_sizes(config_json)

    supports_scalar_head: ClassVar = False

    @classmethod
    def fill_derived_sizes(cls, sizes: Sizes) -> Sizes:
        """Fill undecided widths of heads, dense layers and experts, and the output std."""
        sizes = super().fill_derived_sizes(sizes)
        dim, dense, moe = sizes["dim"], sizes["feed_forward"], sizes["moe"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, sizes["n_heads"]):
            sizes["head_dim"] = dim // sizes["n_heads"]
        rule = {"multiplier": dense["ffn_dim_multiplier"], "multiple_of": dense["multiple_of"]}
        if AUTO in (dim, *rule.values()):
            return sizes
        if dense["hidden_dim"] == AUTO:
            dense["hidden_dim"] = compute_swiglu_hidden_dim(dim, **rule)
        chosen, shared = moe["top_k"], moe["num_shared_experts"]
        if moe["hidden_dim"] == AUTO and AUTO not in (chosen, shared):
            moe["hidden_dim"] = compute_expert_hidden_dim(
                dim, active_experts=chosen + shared, **rule
            )
        return sizes

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find heads that do not divide, unusable layer patterns, and invalid rope and moe."""
        dim, n_heads = sizes["dim"], sizes["n_heads"]
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
        step, layers = sizes["interleave_moe_layer_step"], sizes["n_layers"]
        if AUTO not in (step, layers) and step > layers:
            message = f"interleave_moe_layer_step {step} exceeds n_layers {layers}"
            problems.append(
                build_size_problem("interleave_moe_layer_step", message, f"use at most {layers}")
            )
        return problems + find_nope_problems(sizes)

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer's index, counted from one, is a multiple of the interval."""
        return (layer + 1) % unwrap_auto(self.interleave_moe_layer_step) == 0

    def uses_rope(self, layer: int) -> bool:
        """Return whether a layer applies RoPE to its queries and keys."""
        every = unwrap_auto(self.every_n_layers_nope)
        return every is None or layer % every != unwrap_auto(self.first_nope_layer)

    def get_attention_chunk_size(self, layer: int) -> int | None:
        """Return the block size of a layer's attention, or None if it sees whole sequences."""
        return unwrap_auto(self.fixed_attn_block_size) if self.uses_rope(layer) else None

    def attention_activation_elements(self) -> int:
        """Return the elements that attention keeps per token.

        Normalized queries and keys count once more.
        """
        return super().attention_activation_elements() + (
            sum(self.projection_dims()) if unwrap_auto(self.qk_norm) else 0
        )

    def export_problems(self) -> list[Problem]:
        """Return expert settings that differ from transformers."""
        problems = []
        for field, theirs in TRANSFORMERS_EXPERT_SIZES.items():
            ours = getattr(self.moe, field)
            if ours != theirs:
                message = (
                    f"transformers' Llama4 does not support moe.{field} {format_short_value(ours)}"
                )
                problems.append(
                    build_size_problem(
                        f"moe.{field}",
                        message,
                        f"use {format_short_value(theirs)}, or disable the export",
                    )
                )
        return problems


def compute_expert_hidden_dim(
    dim: int, *, active_experts: int, multiplier: float | None, multiple_of: int
) -> int:
    """Return the hidden width of an expert, rounded up to `multiple_of`.

    The `active_experts` of a token together cost as much as one dense layer.
    """
    width = compute_swiglu_hidden_dim(dim, multiplier=multiplier, multiple_of=1)
    return min(
        -(-(width // max(active_experts, 1)) // multiple_of) * multiple_of, int(OVERSIZED_DIM)
    )


def find_nope_problems(sizes: Sizes) -> list[Problem]:
    """Find conflicts in the settings of layers without RoPE."""
    every, first, layers, scale = (
        sizes[key] for key in ("every_n_layers_nope", "first_nope_layer", "n_layers", "attn_scale")
    )
    if every is None and scale not in (AUTO, 0):
        message = "attn_scale applies to layers without RoPE, but all layers have RoPE"
        return [build_size_problem("attn_scale", message, "use 0, or set every_n_layers_nope")]
    if every == 1:
        return [
            build_size_problem(
                "every_n_layers_nope",
                "no layer would have RoPE",
                "use 2 or more, or null for RoPE in all layers",
            )
        ]
    if every is not None and AUTO not in (every, first) and first >= every:
        message = f"first_nope_layer {first} is not below every_n_layers_nope {every}"
        return [build_size_problem("first_nope_layer", message, f"use 0 to {every - 1}")]
    if every is not None and AUTO not in (first, layers) and first >= layers:
        message = f"first_nope_layer is {first}, but the last layer is {layers - 1}"
        return [
            build_size_problem(
                "first_nope_layer",
                message,
                f"use at most {layers - 1}, or every_n_layers_nope: null",
            )
        ]
    return []


def read_llama4_sizes(written: dict[str, Any]) -> Sizes:
    """Return the sizes in a config.json. Absent keys have transformers' defaults.

    Raises:
        ProblemsFound: if the family cannot read it.
    """
    file = HuggingFaceConfigReader(written, family="llama4")
    if file.take_one_allowed("model_type", TEXT_TYPE, WHOLE_TYPE) == TEXT_TYPE:
        sizes = read_text_model_sizes(file)
    else:
        for key in IMAGE_KEYS:
            file.remaining.pop(key, None)
        text = file.take_nested_config("text_config")
        text.take_one_allowed("model_type", TEXT_TYPE)
        sizes = {
            **read_text_model_sizes(text),
            "tie_word_embeddings": file.take_bool("tie_word_embeddings", False),
        }
        file.nested_configs += text.nested_configs
    file.check_all_keys_read()
    return sizes


def read_text_model_sizes(file: HuggingFaceConfigReader) -> Sizes:
    """Return the sizes of the text model. Problems are collected in `file`."""
    for key in IGNORED_KEYS:
        file.remaining.pop(key, None)
    sizes = read_decoder_sizes(file, max_seq_len=131072, norm_eps=1e-5)
    layers = sizes["n_layers"] or 0
    every, first = read_nope_pattern(file, layers)
    has_rope = [every is None or layer % every != first for layer in range(layers)]
    tuned = file.take_value(
        "attn_temperature_tuning", True, lambda value: type(value) in (bool, int), "true or false"
    )
    scale = file.take_non_negative_float("attn_scale", 0.1)
    sizes |= {
        "n_kv_heads": file.take_positive_int(
            "num_key_value_heads",
            sizes["n_heads"] if "num_key_value_heads" in file.remaining else 8,
        ),
        "head_dim": file.take_positive_int(
            "head_dim", AUTO if "head_dim" in file.remaining else 128
        ),
        "interleave_moe_layer_step": read_moe_step(file, layers),
        "every_n_layers_nope": every,
        "first_nope_layer": first,
        "fixed_attn_block_size": read_attention_chunk_size(file, has_rope),
        "qk_norm": file.take_bool("use_qk_norm", True),
        # only layers without RoPE read it
        "attn_scale": scale if tuned and every is not None else 0.0,
        "floor_scale": file.take_positive_int("floor_scale", 8192),
        "rope": read_rope_sizes(file, "llama3", max_seq_len=sizes["max_seq_len"], theta=500000.0),
        "feed_forward": {"hidden_dim": file.take_positive_int("intermediate_size_mlp", 16384)},
        "moe": {
            "num_experts": file.take_positive_int("num_local_experts", 16),
            "top_k": file.take_positive_int("num_experts_per_tok", 1),
            "hidden_dim": file.take_positive_int("intermediate_size", 8192),
            "load_balance_coeff": LOAD_BALANCE_COEFF,
            **TRANSFORMERS_EXPERT_SIZES,
        },
    }
    return sizes


def read_nope_pattern(file: HuggingFaceConfigReader, layers: int) -> tuple[int | None, int]:
    """Return every_n_layers_nope and first_nope_layer.

    They come from the list of layers with RoPE, which must be periodic, else from the interval.
    """
    every: int = file.take_positive_int("no_rope_layer_interval", 4)
    flags = file.take_value("no_rope_layers", [], is_bit_list, "a list of 0 and 1")
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
        file.add_problem(
            f"{file.get_full_key(key)} must select one of every n layers with n >= 2, which is "
            f"all that llama4 supports"
        )
    return every, first


def is_bit_list(value: Any) -> bool:
    """Return whether a value is a list of 0 and 1, or of false and true."""
    return isinstance(value, list) and all(item in (0, 1) for item in value)


def read_moe_step(file: HuggingFaceConfigReader, layers: int) -> int:
    """Return interleave_moe_layer_step.

    transformers uses the list of layers with experts if there is one, which must be periodic.
    """
    step: int = file.take_positive_int("interleave_moe_layer_step", 1)
    named = file.remaining.get("moe_layers")
    if isinstance(named, list) and named and type(named[0]) is int:
        step = named[0] + 1
    file.take_one_allowed("moe_layers", list(range(step - 1, layers, step)))
    return step


def read_attention_chunk_size(file: HuggingFaceConfigReader, has_rope: list[bool]) -> int | None:
    """Return fixed_attn_block_size, or None if layer_types has full attention only."""
    in_blocks = ["chunked_attention" if rope else "full_attention" for rope in has_rope]
    is_nowhere = (
        file.take_one_allowed("layer_types", in_blocks, ["full_attention"] * len(has_rope))
        != in_blocks
    )
    block: int = file.take_positive_int("attention_chunk_size", 8192)
    return None if is_nowhere else block
