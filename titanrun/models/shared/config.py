"""The model slot, and the nested configs that model families share: attention, RoPE, feed-forward."""

from math import log
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from annotated_types import Interval

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, component, numerics, performance
from titanrun.config.problems import DataPath, Problem
from titanrun.config.types import (
    AUTO,
    NonNegativeFloat,
    NonNegativeInt,
    OrAuto,
    PositiveFloat,
    PositiveInt,
    Text,
)

T = TypeVar("T")
Sizes: TypeAlias = dict[str, Any]
# every layer has names and shapes of its own, which are listed without a GPU: a mistyped count must not fill the memory
LayerCount: TypeAlias = Annotated[int, Interval(gt=0, le=10_000)]
# a float that no integer field takes, where infinity would not even become an integer
FAR_TOO_WIDE = 2.0**64
Feature: TypeAlias = Literal[
    "tensor parallelism",
    "pipeline parallelism",
    "context parallelism",
    "context parallelism with flex attention",
    "expert parallelism",
    "varlen attention",
    "paged attention",
    "gradient accumulation",
    "validation",
    "text generation",
    "a loss in chunks",
]
PAGED_BY_VLLM = (
    "vLLM's kernels do not know its attention: use {name: vllm, model: huggingface}, or native"
)


class ModelConfig(ComponentConfig):
    """A model family. Sizes left `auto` come from the flavor.

    Beside the module of its config a family keeps flavors.yaml, model.py and huggingface.py. The methods below are what the
    rest of titanrun asks of it; `sizes` is plain data in the shape of the family's fields, in which undecided values are "auto".
    """

    slot: ClassVar = "model"
    is_slot: ClassVar = True
    follows: ClassVar[frozenset[DataPath]] = frozenset()
    """Sizes that `derived` decides once all others are known."""
    huggingface_types: ClassVar[tuple[str, ...]] = ()
    """`model_type` in the config.json files that `flavor: auto` reads for this family."""
    lacks: ClassVar[frozenset[Feature]] = frozenset()
    """What the rest of titanrun can do and this family cannot; a rule refuses recipes that ask for it."""
    instead: ClassVar[dict[Feature, str]] = {}
    """For what a family lacks: why, and what to use instead."""
    splits_stream: ClassVar[bool] = True
    """Whether tensor-parallel ranks can each hold a piece of the residual stream: sequence parallelism."""
    takes: ClassVar[str] = "tokens"
    """What it trains on, tokens or images: what its dataset has to give, and its loss to be about."""

    name: str = bookkeeping()
    flavor: Text | None = bookkeeping(None, examples=["8B"])
    """Named size of the family; `auto` reads config.json in hf_assets_path; null with all sizes written out is a custom model."""
    hf_assets_path: Text | None = bookkeeping(None, examples=["assets/Llama-3.1-8B"])
    """Folder with Hugging Face files: config.json, weights, tokenizer."""
    vocab_size: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[128256])
    """Rows of the embedding and of the output head."""
    max_seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[131072])
    """Longest context the architecture is meant for; training.seq_len may not exceed it."""
    print_after_conversion: bool = bookkeeping(False, resume=True)
    """Whether the log shows the tree of modules once the converters are through with it."""

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes that the mapping in a Hugging Face config.json describes.

        Raises ProblemsFound naming every key that the family does not know or cannot honour.
        """
        raise NotImplementedError

    def sizes_from_file(self) -> Sizes | None:
        """The sizes in a file that the config itself names; None for a family whose sizes come from its flavor.

        Raises ProblemsFound where the file cannot be read.
        """
        return None

    @classmethod
    def for_rows(cls, sizes: Sizes, row_length: int) -> Sizes:
        """A flavor's `sizes` for training on rows of `row_length` tokens, where a flavor means another model for longer ones."""
        return sizes

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """`sizes` with every "auto" of `follows` decided whose sources are known."""
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """What cannot be true together in `sizes`, before anything is derived."""
        return []

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter of the model, in the model's order; a tied head is not listed."""
        raise NotImplementedError

    def attention_width(self) -> int:
        """Width of a query head's key plus width of its value, summed over query heads and layers."""
        raise NotImplementedError

    def export_problems(self) -> list[Problem]:
        """What transformers has no mathematics for, so that weights under its names would be another model's."""
        return []

    def idle_parameter_count(self) -> int:
        """Parameters that a token does not meet: those of the experts it is not sent to."""
        return 0

    def stream_width(self) -> int:
        """Width of the residual stream."""
        raise NotImplementedError

    def key_value_width(self) -> int:
        """Width of the keys of all heads of one layer, plus that of the values: what context-parallel ranks send each other."""
        return 0

    def kept_widths(self) -> tuple[int, int]:
        """Elements that a layer keeps of each token for its backward pass: those as wide as the stream, and those that
        tensor-parallel ranks split. Of layers that differ, those of the one that keeps most."""
        raise NotImplementedError

    def output_width(self) -> int:
        """Numbers that the model gives for a token: logits of its vocabulary."""
        return decided(self.vocab_size)

    def row_length(self, image_size: int) -> int:
        """Tokens of a caption and of a square picture of so many pixels a side, for a family that takes images."""
        raise NotImplementedError

    def pixels_of_token(self) -> int:
        """Pixels of a side that become one token, for a family that takes images."""
        raise NotImplementedError

    def heads(self) -> dict[str, int]:
        """Attention heads, which tensor-parallel ranks hold whole, by the field that names their number."""
        return {
            name: decided(getattr(self, name))
            for name in ("n_heads", "n_kv_heads")
            if name in type(self).model_fields
        }

    def hidden_widths(self) -> dict[str, int]:
        """Hidden widths of feed-forward layers and of experts, which tensor-parallel ranks split, by the section that has them."""
        sections = {".feed_forward.": "feed_forward", ".moe.": "moe"}
        present = [
            section
            for part, section in sections.items()
            if any(part in name for name in self.parameter_shapes())
        ]
        return {
            section: int(decided(getattr(self, section).hidden_dim))
            for section in present
            if hasattr(self, section)
        }

    def split_obstacle(self, degree: int) -> str | None:
        """What keeps `degree` tensor-parallel ranks from sharing the model, where neither `lacks` nor a count of the config says it."""
        return None

    def further_tokens(self) -> int:
        """Tokens after the next one that the model predicts in training."""
        return 0

    def layer_count(self) -> int:
        """Layers that pipeline stages can hold."""
        return int(decided(getattr(self, "n_layers", 1)))

    def module_names(self) -> list[str]:
        """The modules that pipeline stages hold, in the model's order: each layer, and what stands before and after the layers."""
        steps = [name.split(".") for name in self.parameter_shapes()]
        names = [".".join(step[:2]) if step[0] == "layers" else step[0] for step in steps]
        return list(dict.fromkeys(names if "output" in names else [*names, "output"]))

    def routed_experts(self) -> int:
        """Experts of a layer that a router chooses from; 0 for a dense model."""
        return int(decided(getattr(getattr(self, "moe", None), "num_experts", 0)))


def decided(value: T | Literal["auto"]) -> T:
    """A value that `resolve` has filled in."""
    assert not isinstance(value, str) or value != AUTO, "an unresolved model config"
    return value


class AttentionConfig(Config):
    """How scores are computed and which of them are masked."""

    backend: OrAuto[Literal["sdpa", "flex", "varlen"]] = performance("auto")
    """sdpa: torch's scaled_dot_product_attention; flex and varlen compute nothing that is masked, on accelerators."""
    mask: OrAuto[Literal["causal", "block_causal"]] = numerics("auto")
    """causal: every earlier token of the row; block_causal: every earlier token of the same document."""
    documents: OrAuto[Literal["positions", "eos"]] | None = numerics("auto")
    """What begins a document, for block_causal: positions that start anew, or the token after an end-of-text token; `auto` follows the
    dataset; null: nothing does, for causal."""


class RopeScalingConfig(ComponentConfig):
    """How RoPE frequencies are stretched beyond the length the base was chosen for."""

    slot: ClassVar = "rope_scaling"
    is_slot: ClassVar = True

    def magnitude(self) -> float:
        """Factor on the cosines and sines of stretched frequencies."""
        return 1.0

    def score_factor(self) -> float:
        """Factor on attention scores, in a family that scales them with the context."""
        return 1.0


class Llama3RopeScalingConfig(RopeScalingConfig):
    """Llama 3.1's rule: long wavelengths divided by `factor`, short ones kept, a linear ramp between."""

    name: Literal["llama3"] = numerics("llama3")
    builds: ClassVar = "titanrun.models.shared.rope:llama3_scaling"
    factor: PositiveFloat = numerics(8.0)
    """Divisor of the frequencies whose wavelength exceeds the original context over low_freq_factor."""
    low_freq_factor: PositiveFloat = numerics(1.0)
    """Wavelengths above original_max_position_embeddings / low_freq_factor are fully stretched."""
    high_freq_factor: PositiveFloat = numerics(4.0)
    """Wavelengths below original_max_position_embeddings / high_freq_factor stay as they are."""
    original_max_position_embeddings: PositiveInt = numerics(8192, unit="tokens")
    """Context length before stretching."""


class YarnRopeScalingConfig(RopeScalingConfig):
    """YaRN (https://arxiv.org/abs/2309.00071): pairs that turn rarely within the original context are slowed down by `factor`, those that
    turn often stay, a linear ramp over the pairs between; m(x) = 0.1 x ln(factor) + 1 makes up for the flatter attention."""

    name: Literal["yarn"] = numerics("yarn")
    builds: ClassVar = "titanrun.models.shared.rope:yarn_scaling"
    factor: PositiveFloat = numerics(40.0)
    """Divisor of the frequencies of the pairs that turn less than beta_slow times."""
    beta_fast: PositiveFloat = numerics(32.0, unit="turns")
    """Pairs that turn more often than this within the original context stay as they are."""
    beta_slow: PositiveFloat = numerics(1.0, unit="turns")
    """Pairs that turn less often than this within the original context are fully slowed down."""
    original_max_position_embeddings: PositiveInt = numerics(4096, unit="tokens")
    """Context length before stretching."""
    truncate: bool = numerics(True)
    """Whether the ramp begins and ends at whole pairs."""
    mscale: NonNegativeFloat = numerics(1.0)
    """Cosines and sines are multiplied by m(mscale) / m(mscale_all_dim)."""
    mscale_all_dim: NonNegativeFloat = numerics(0.0)
    """See mscale; deepseek_v3 multiplies attention scores by m(mscale_all_dim)^2 as well."""
    attention_factor: PositiveFloat | None = numerics(None, examples=[1.0])
    """What cosines and sines are multiplied by; null: what the mscales say."""

    def growth(self, mscale: float) -> float:
        """m(mscale); 1 where nothing is stretched."""
        return 0.1 * mscale * log(self.factor) + 1 if self.factor > 1 else 1.0

    def magnitude(self) -> float:
        """Factor on cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        return self.growth(self.mscale) / self.growth(self.mscale_all_dim)

    def score_factor(self) -> float:
        """Factor on attention scores: queries and keys each grow."""
        return self.growth(self.mscale_all_dim) ** 2


class RopeConfig(Config):
    """Rotary position embedding (https://arxiv.org/abs/2104.09864)."""

    theta: OrAuto[PositiveFloat] = numerics("auto", examples=[500000.0])
    """Base of the frequencies theta^(-2i/head_dim)."""
    scaling: OrAuto[RopeScalingConfig] | None = component("auto")
    """Frequency scaling for long contexts; null: none."""


class FeedForwardConfig(Config):
    """SwiGLU width: hidden_dim, or the rule int(multiplier * int(8 * dim / 3)) rounded up to multiple_of."""

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[14336])
    """Width of the hidden layer; `auto` applies the rule."""
    multiple_of: OrAuto[PositiveInt] = numerics("auto", examples=[1024])
    """The rule rounds the width up to a multiple of this."""
    ffn_dim_multiplier: OrAuto[PositiveFloat] | None = numerics("auto", examples=[1.3])
    """Factor of the rule; null: 1."""


class DecoderInitConfig(Config):
    """Standard deviations of the initial weights; matrices are drawn from a normal truncated at +-truncation."""

    embedding_std: PositiveFloat = numerics(1.0)
    """Std of the token embedding, a plain normal; a tied matrix is drawn as the output head."""
    linear_std: PositiveFloat = numerics(0.02)
    """Std of wq, wk, wv and w1; base of the depth-scaled std of wo, w2 and w3."""
    depth_scaling: Literal["layer", "model"] = numerics("layer")
    """Std of wo, w2, w3: linear_std / sqrt(2 (layer + 1)), or linear_std / sqrt(2 n_layers) for all layers."""
    truncation: PositiveFloat = numerics(2.0)
    """Absolute bound of the truncated normal draws (not in stds)."""
    output_std: OrAuto[PositiveFloat] = numerics("auto", examples=[0.02])
    """Std of the output head; `auto` is dim^-0.5."""
    output_truncation_stds: PositiveFloat = numerics(3.0)
    """Bound of the output head's draws, in its stds."""


def swiglu_width(dim: int, *, multiplier: float | None, multiple_of: int) -> int:
    """Hidden width by Llama's rule: two thirds of 4 dim, times the multiplier, rounded up."""
    width = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        width = int(min(multiplier * width, FAR_TOO_WIDE))
    return -(-width // multiple_of) * multiple_of


def with_plain_widths(sizes: Sizes) -> Sizes:
    """`sizes` with as many key and value heads as query heads, heads that share dim, and the width of the rule, where undecided."""
    dim, n_heads, feed_forward = sizes["dim"], sizes["n_heads"], sizes["feed_forward"]
    decided_here: Sizes = {"n_kv_heads": n_heads} if sizes["n_kv_heads"] == AUTO else {}
    if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads):
        decided_here["head_dim"] = dim // n_heads
    rule = (dim, feed_forward["multiple_of"], feed_forward["ffn_dim_multiplier"])
    if feed_forward["hidden_dim"] == AUTO and AUTO not in rule:
        width = swiglu_width(dim, multiplier=rule[2], multiple_of=rule[1])
        decided_here["feed_forward"] = {**feed_forward, "hidden_dim": width}
    return sizes | decided_here


class MoeConfig(Config):
    """Mixture of experts: a router sends each token to `top_k` of `num_experts` feed-forward layers."""

    num_experts: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Experts of a layer that the router chooses from."""
    top_k: OrAuto[PositiveInt] = numerics("auto", examples=[8])
    """Experts that one token goes to."""
    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[768])
    """Width of an expert's hidden layer."""
    num_shared_experts: OrAuto[NonNegativeInt] = numerics("auto", examples=[0])
    """Experts that every token goes to beside those of the router, as one layer of their joint width."""
    score_func: OrAuto[Literal["sigmoid", "softmax"]] = numerics("auto")
    """What makes scores of the router's logits, in fp32: each for itself, or a distribution over all experts."""
    route_norm: OrAuto[bool] = numerics("auto")
    """Whether the scores of a token's experts are divided by their sum."""
    route_scale: OrAuto[PositiveFloat] = numerics("auto", examples=[1.0])
    """Factor on the scores of the chosen experts."""
    gate_bias: OrAuto[bool] = numerics("auto")
    """Whether the router's linear layer has a bias."""
    score_before_experts: OrAuto[bool] = numerics("auto")
    """Whether a token is multiplied by its score before an expert sees it, or the expert's output after."""
    num_expert_groups: OrAuto[PositiveInt] | None = numerics("auto", examples=[8])
    """Groups of experts of which a token may use `num_limited_groups`; null: any expert."""
    num_limited_groups: OrAuto[PositiveInt] | None = numerics("auto", examples=[4])
    """Groups that one token may use: those with the largest sum of their two best scores."""
    load_balance_coeff: OrAuto[PositiveFloat] | None = numerics("auto", examples=[0.001])
    """Step of the bias that moves the router's choice towards idle experts (https://arxiv.org/abs/2408.15664); null: none."""
    use_grouped_mm: bool = performance(True)
    """Whether one grouped matrix product runs all experts where torch has it for the device and dtype; else a loop over experts."""


def moe_conflicts(moe: Sizes) -> list[Problem]:
    """What cannot be true together in the sizes of a mixture of experts."""
    experts, top_k, groups, limited = (
        moe[key] for key in ("num_experts", "top_k", "num_expert_groups", "num_limited_groups")
    )
    found: list[tuple[str, str, str]] = []
    if AUTO not in (experts, top_k) and top_k > experts:
        found.append(
            (
                "top_k",
                f"a token cannot go to {top_k} of {experts} experts",
                f"use {experts} at most",
            )
        )
    if (groups is None) != (limited is None) and AUTO not in (groups, limited):
        found.append(
            (
                "num_limited_groups",
                "expert groups need both num_expert_groups and num_limited_groups",
                "write both, or null for both",
            )
        )
    elif groups is not None and AUTO not in (groups, experts, limited, top_k):
        found += group_conflicts(experts, groups, limited, top_k)
    return [
        Problem("conflict", message, ("model", "moe", field), help=help)
        for field, message, help in found
    ]


def group_conflicts(
    experts: int, groups: int, limited: int, top_k: int
) -> list[tuple[str, str, str]]:
    """Field, message and help for groups that do not divide the experts, or hold too few of them."""
    if experts % groups or experts // groups < 2:
        message = f"{experts} experts cannot be dealt to {groups} groups of at least two"
        return [("num_expert_groups", message, f"use a divisor of {experts} up to {experts // 2}")]
    if limited > groups or limited * (experts // groups) < top_k:
        least = -(-top_k // (experts // groups))
        message = f"{limited} groups of {experts // groups} experts do not hold the {top_k} experts of a token"
        return [("num_limited_groups", message, f"use {least} to {groups}")]
    return []
