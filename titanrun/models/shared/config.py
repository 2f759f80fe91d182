"""Model slot, and nested configs that families share: attention, feed-forward, experts."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from annotated_types import Interval

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.problems import DataPath, Problem
from titanrun.config.types import (
    AUTO,
    NonNegativeInt,
    OrAuto,
    PositiveFloat,
    PositiveInt,
    Text,
)

T = TypeVar("T")
Sizes: TypeAlias = dict[str, Any]
# names and shapes of all layers are listed without a GPU, so a mistyped count must not fill the
# memory
LayerCount: TypeAlias = Annotated[int, Interval(gt=0, le=10_000)]
# a float above the range of integer fields; unlike infinity it can be converted to an integer
OVERSIZED_DIM = 2.0**64
ModelFeature: TypeAlias = Literal[
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
PAGED_ATTENTION_ALTERNATIVE = (
    "vLLM's kernels do not support its attention: use {name: vllm, model: huggingface}, or native"
)


class ModelConfig(ComponentConfig):
    """A model family. Sizes left `auto` come from the flavor.

    In the folder of its config a family has flavors.yaml, model.py and huggingface.py. The methods
    below are its interface. `sizes` is plain data in the shape of its fields, or "auto" values.
    """

    slot: ClassVar = "model"
    is_slot: ClassVar = True
    builds_what: ClassVar = "a torch.nn.Module with init_weights()"
    built_attributes: ClassVar = ("forward", "named_parameters", "init_weights")
    derived_fields: ClassVar[frozenset[DataPath]] = frozenset()
    """Sizes that `fill_derived_sizes` fills once all others are known."""
    huggingface_types: ClassVar[tuple[str, ...]] = ()
    """`model_type` values of the config.json files that `flavor: auto` reads for this family."""
    unsupported_features: ClassVar[frozenset[ModelFeature]] = frozenset()
    """Features that this family does not support. A rule rejects recipes that use them."""
    alternative: ClassVar[dict[ModelFeature, str]] = {}
    """Reason and alternative for an unsupported feature."""
    supports_sequence_parallel: ClassVar[bool] = True
    """Whether tensor-parallel ranks can each hold a part of the residual stream (sequence
    parallelism).
    """
    modality: ClassVar[str] = "tokens"
    """Data that the family trains on, tokens or images. Dataset and loss must match it."""

    name: str = bookkeeping()
    flavor: Text | None = bookkeeping(None, examples=["8B"])
    """Named size of the family. `auto` reads config.json in hf_assets_path. null with all sizes
    written out is a custom model.
    """
    hf_assets_path: Text | None = bookkeeping(None, examples=["assets/Llama-3.1-8B"])
    """Folder with Hugging Face files: config.json, weights, tokenizer."""
    vocab_size: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[128256])
    """Number of rows of the embedding and of the output head."""
    max_seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[131072])
    """Longest context of the architecture. training.seq_len may not exceed it."""
    print_after_conversion: bool = bookkeeping(False, resume=True)
    """Whether the log shows the module tree after the converters have run."""

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes that the mapping in a Hugging Face config.json describes.

        Raises:
            ProblemsFound: naming every key that the family does not know or support.
        """
        raise NotImplementedError

    def find_file_sizes(self) -> Sizes | None:
        """Return the sizes in a file that the config itself names.

        Return None for a family whose sizes come from its flavor.

        Raises:
            ProblemsFound: if the file cannot be read.
        """
        return None

    @classmethod
    def adapt_sizes_to_seq_len(cls, sizes: Sizes, seq_len: int) -> Sizes:
        """Return a flavor's sizes for training on sequences of `seq_len` tokens.

        Override this if the flavor means another model for longer sequences.
        """
        return sizes

    @classmethod
    def fill_derived_sizes(cls, sizes: Sizes) -> Sizes:
        """Return `sizes` with each "auto" of `derived_fields` filled whose sources are known."""
        return sizes

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find conflicts in `sizes` before anything is derived."""
        return []

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every parameter, in the model's order.

        A tied head is not listed.
        """
        raise NotImplementedError

    def attention_dim(self) -> int:
        """Return key width plus value width, summed over query heads and layers."""
        raise NotImplementedError

    def export_problems(self) -> list[Problem]:
        """Return settings that transformers cannot compute, so that an export would be wrong."""
        return []

    def inactive_parameter_count(self) -> int:
        """Return the parameters of experts to which a token is not sent."""
        return 0

    def model_dim(self) -> int:
        """Return the width of the residual stream."""
        raise NotImplementedError

    def kv_dim(self) -> int:
        """Return the width of keys plus values of all heads of one layer.

        Context-parallel ranks exchange these.
        """
        return 0

    def layer_activation_elements(self) -> tuple[int, int]:
        """Return the elements that a layer keeps per token for its backward pass.

        The first number counts elements as wide as the stream, the second those that
        tensor-parallel ranks split. If layers differ, they are those of the layer that keeps most.
        """
        raise NotImplementedError

    def output_dim(self) -> int:
        """Return the number of outputs per token: logits of the vocabulary."""
        return unwrap_auto(self.vocab_size)

    def image_seq_len(self, image_size: int) -> int:
        """Return the tokens of a caption and a square image of `image_size` pixels per side.

        Only families of modality images implement this.
        """
        raise NotImplementedError

    def pixels_per_token(self) -> int:
        """Return the pixels per side of one token, for families of modality images."""
        raise NotImplementedError

    def head_counts(self) -> dict[str, int]:
        """Return the number of attention heads by the field that names it.

        Tensor-parallel ranks do not split a head.
        """
        return {
            name: unwrap_auto(getattr(self, name))
            for name in ("n_heads", "n_kv_heads")
            if name in type(self).model_fields
        }

    def get_hidden_dims(self) -> dict[str, int]:
        """Return the hidden widths of feed-forward layers and experts by config section.

        Tensor-parallel ranks split them.
        """
        sections = {".feed_forward.": "feed_forward", ".moe.": "moe"}
        present = [
            section
            for part, section in sections.items()
            if any(part in name for name in self.parameter_shapes())
        ]
        return {
            section: int(unwrap_auto(getattr(self, section).hidden_dim))
            for section in present
            if hasattr(self, section)
        }

    def find_tensor_parallel_obstacle(self, degree: int) -> str | None:
        """Return why `degree` tensor-parallel ranks cannot share the model, or None.

        Reasons in `unsupported_features` and counts of the config are checked elsewhere.
        """
        return None

    def mtp_depth(self) -> int:
        """Return the number of tokens after the next one that the model predicts in training."""
        return 0

    def layer_count(self) -> int:
        """Return the number of layers that pipeline stages can hold."""
        return int(unwrap_auto(getattr(self, "n_layers", 1)))

    def module_names(self) -> list[str]:
        """Return the modules that pipeline stages hold, in the model's order.

        These are each layer, and the modules before and after the layers.
        """
        steps = [name.split(".") for name in self.parameter_shapes()]
        names = [".".join(step[:2]) if step[0] == "layers" else step[0] for step in steps]
        return list(dict.fromkeys(names if "output" in names else [*names, "output"]))

    def count_routed_experts(self) -> int:
        """Return the number of experts of a layer that a router chooses from, 0 if dense."""
        return int(unwrap_auto(getattr(getattr(self, "moe", None), "num_experts", 0)))


def unwrap_auto(value: T | Literal["auto"]) -> T:
    """Return a resolved value, which is no longer `auto`."""
    assert not isinstance(value, str) or value != AUTO, "an unresolved model config"
    return value


class AttentionConfig(Config):
    """Attention back end and mask."""

    backend: OrAuto[Literal["sdpa", "flex", "varlen"]] = performance("auto")
    """sdpa: torch's scaled_dot_product_attention. flex and varlen skip masked scores, on
    accelerators. `auto`: that of the flavor, else flex for documents and windows, else sdpa."""
    mask: OrAuto[Literal["causal", "block_causal"]] = numerics("auto")
    """causal: every earlier token of the sequence. block_causal: every earlier token of the same
    document.
    """
    documents: OrAuto[Literal["positions", "eos"]] | None = numerics("auto")
    """Start of a document for block_causal: positions that restart, or the token after an
    end-of-text token. `auto` follows the dataset. null: no documents, for causal.
    """


class FeedForwardConfig(Config):
    """SwiGLU width, given as hidden_dim or by a rule.

    The rule is int(multiplier * int(8 * dim / 3)) rounded up to multiple_of.
    """

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[14336])
    """Width of the hidden layer. `auto` applies the rule."""
    multiple_of: OrAuto[PositiveInt] = numerics("auto", examples=[1024])
    """The rule rounds the width up to a multiple of this."""
    ffn_dim_multiplier: OrAuto[PositiveFloat] | None = numerics("auto", examples=[1.3])
    """Factor of the rule. null: 1."""


class DecoderInitConfig(Config):
    """Standard deviations of the initial weights.

    Matrices are drawn from a normal distribution truncated at +-truncation.
    """

    embedding_std: PositiveFloat = numerics(1.0)
    """Std of the token embedding, a plain normal. A tied matrix is drawn as the output head."""
    linear_std: PositiveFloat = numerics(0.02)
    """Std of wq, wk, wv and w1, and base of the depth-scaled std of wo, w2 and w3."""
    depth_scaling: Literal["layer", "model"] = numerics("layer")
    """Std of wo, w2, w3. layer: linear_std / sqrt(2 (layer + 1)). model: linear_std / sqrt(2
    n_layers) for all layers.
    """
    truncation: PositiveFloat = numerics(2.0)
    """Absolute bound of the truncated normal draws (not in stds)."""
    output_std: OrAuto[PositiveFloat] = numerics("auto", examples=[0.02])
    """Std of the output head. `auto` is dim^-0.5."""
    output_truncation_stds: PositiveFloat = numerics(3.0)
    """Bound of the output head's draws, in its stds."""


def compute_swiglu_hidden_dim(dim: int, *, multiplier: float | None, multiple_of: int) -> int:
    """Return Llama's hidden width: 2/3 of 4 dim, times the multiplier, rounded up."""
    width = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        width = int(min(multiplier * width, OVERSIZED_DIM))
    return -(-width // multiple_of) * multiple_of


def fill_default_dims(sizes: Sizes) -> Sizes:
    """Fill undecided key and value heads, head width and feed-forward width.

    There are as many key and value heads as query heads, the heads share dim, and the width follows
    the rule.
    """
    dim, n_heads, feed_forward = sizes["dim"], sizes["n_heads"], sizes["feed_forward"]
    filled: Sizes = {"n_kv_heads": n_heads} if sizes["n_kv_heads"] == AUTO else {}
    if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads):
        filled["head_dim"] = dim // n_heads
    rule = (dim, feed_forward["multiple_of"], feed_forward["ffn_dim_multiplier"])
    if feed_forward["hidden_dim"] == AUTO and AUTO not in rule:
        width = compute_swiglu_hidden_dim(dim, multiplier=rule[2], multiple_of=rule[1])
        filled["feed_forward"] = {**feed_forward, "hidden_dim": width}
    return sizes | filled


class MoeConfig(Config):
    """Mixture of experts: a router sends each token to `top_k` of `num_experts` experts."""

    num_experts: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Number of experts of a layer that the router chooses from."""
    top_k: OrAuto[PositiveInt] = numerics("auto", examples=[8])
    """Number of experts per token."""
    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[768])
    """Width of an expert's hidden layer."""
    num_shared_experts: OrAuto[NonNegativeInt] = numerics("auto", examples=[0])
    """Experts that every token uses in addition to the routed ones, as one layer of joint width."""
    score_func: OrAuto[Literal["sigmoid", "softmax"]] = numerics("auto")
    """Conversion of router logits to fp32 scores: per expert, or a distribution over experts."""
    route_norm: OrAuto[bool] = numerics("auto")
    """Whether the scores of a token's experts are divided by their sum."""
    route_scale: OrAuto[PositiveFloat] = numerics("auto", examples=[1.0])
    """Factor on the scores of the chosen experts."""
    gate_bias: OrAuto[bool] = numerics("auto")
    """Whether the router's linear layer has a bias."""
    score_before_experts: OrAuto[bool] = numerics("auto")
    """Whether a token is multiplied by its score before the expert, instead of the expert's output
    afterwards.
    """
    num_expert_groups: OrAuto[PositiveInt] | None = numerics("auto", examples=[8])
    """Number of groups of experts, of which a token may use `num_limited_groups`. null: any expert.
    """
    num_limited_groups: OrAuto[PositiveInt] | None = numerics("auto", examples=[4])
    """Number of groups that one token may use: those with the largest sum of their two best scores.
    """
    load_balance_coeff: OrAuto[PositiveFloat] | None = numerics("auto", examples=[0.001])
    """Step of the bias that shifts the router's choice towards idle experts
    (https://arxiv.org/abs/2408.15664). null: no bias.
    """
    use_grouped_mm: bool = performance(True)
    """Whether one grouped product runs all experts, if torch supports it for the device and dtype.
    Otherwise a loop runs over experts.
    """


def find_moe_problems(moe: Sizes) -> list[Problem]:
    """Find conflicts in the sizes of a mixture of experts."""
    experts, top_k, groups, limited = (
        moe[key] for key in ("num_experts", "top_k", "num_expert_groups", "num_limited_groups")
    )
    found: list[tuple[str, str, str]] = []
    if AUTO not in (experts, top_k) and top_k > experts:
        found.append(
            (
                "top_k",
                f"top_k {top_k} exceeds num_experts {experts}",
                f"use at most {experts}",
            )
        )
    if (groups is None) != (limited is None) and AUTO not in (groups, limited):
        found.append(
            (
                "num_limited_groups",
                "expert groups need both num_expert_groups and num_limited_groups",
                "set both, or null for both",
            )
        )
    elif groups is not None and AUTO not in (groups, experts, limited, top_k):
        found += find_expert_group_conflicts(experts, groups, limited, top_k)
    return [
        Problem("conflict", message, ("model", "moe", field), hint=hint)
        for field, message, hint in found
    ]


def find_expert_group_conflicts(
    experts: int, groups: int, limited: int, top_k: int
) -> list[tuple[str, str, str]]:
    """Return field, message and hint for invalid groups.

    Groups must divide the experts, with at least two experts each, and hold enough of them.
    """
    if experts % groups or experts // groups < 2:
        message = f"{experts} experts cannot be split into {groups} groups of at least two"
        return [("num_expert_groups", message, f"use a divisor of {experts} up to {experts // 2}")]
    if limited > groups or limited * (experts // groups) < top_k:
        least = -(-top_k // (experts // groups))
        message = (
            f"{limited} groups of {experts // groups} experts contain fewer than the "
            f"{top_k} experts of a token"
        )
        return [("num_limited_groups", message, f"use {least} to {groups}")]
    return []
