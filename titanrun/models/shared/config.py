"""The model slot, and the nested configs that model families share: attention, RoPE, feed-forward."""

from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, component, numerics, performance
from titanrun.config.problems import DataPath, Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt, Text

T = TypeVar("T")
Sizes: TypeAlias = dict[str, Any]
Feature: TypeAlias = Literal[
    "tensor parallelism",
    "pipeline parallelism",
    "context parallelism",
    "context parallelism with flex attention",
    "expert parallelism",
    "varlen attention",
    "gradient accumulation",
    "validation",
]


class ModelConfig(ComponentConfig):
    """A model family. Sizes left `auto` come from the flavor.

    Beside the module of its config a family keeps flavors.yaml, model.py and huggingface.py. The methods below are what the
    rest of titanrun asks of it; `sizes` is plain data in the shape of the family's fields, in which undecided values are "auto".
    """

    slot: ClassVar = "model"
    is_slot: ClassVar = True
    follows: ClassVar[frozenset[DataPath]] = frozenset()
    """Sizes that `derived` decides once all others are known."""
    lacks: ClassVar[frozenset[Feature]] = frozenset()
    """What the rest of titanrun can do and this family cannot; a rule refuses recipes that ask for it."""

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

    def heads(self) -> dict[str, int]:
        """Attention heads, which tensor-parallel ranks hold whole, by the field that names their number."""
        return {name: decided(getattr(self, name)) for name in ("n_heads", "n_kv_heads") if name in type(self).model_fields}

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
    """sdpa: torch's scaled_dot_product_attention; flex and varlen need an accelerator."""
    mask: OrAuto[Literal["causal", "block_causal"]] = numerics("auto")
    """causal: every earlier token of the row; block_causal: every earlier token of the same document."""


def refused_attention(attention: AttentionConfig) -> Problem | None:
    """The problem with a back end or mask that cannot run; None where it can, or where it is not decided yet."""
    if attention.backend in ("flex", "varlen"):
        message = f"the {attention.backend} attention back end is not built yet"
        return Problem("not-built", message, ("model", "attention", "backend"), help="use backend sdpa with mask causal")
    if attention.backend == "sdpa" and attention.mask == "block_causal":
        message = "the sdpa attention back end has no document mask, and block_causal asks for one"
        return Problem("conflict", message, ("model", "attention", "mask"), help="use mask causal")
    return None


class RopeScalingConfig(ComponentConfig):
    """How RoPE frequencies are stretched beyond the length the base was chosen for."""

    slot: ClassVar = "rope_scaling"
    is_slot: ClassVar = True


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


def swiglu_width(dim: int, *, multiplier: float | None, multiple_of: int) -> int:
    """Hidden width by Llama's rule: two thirds of 4 dim, times the multiplier, rounded up."""
    width = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        width = int(multiplier * width)
    return -(-width // multiple_of) * multiple_of
