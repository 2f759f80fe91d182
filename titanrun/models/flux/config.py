"""Config of the flux family: sizes, encoders, and what follows from them."""

from math import prod
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem, fail
from titanrun.config.types import (
    AUTO,
    Fraction,
    NonNegativeFloat,
    OrAuto,
    PositiveFloat,
    PositiveInt,
    Text,
)
from titanrun.models.shared.config import Feature, LayerCount, ModelConfig, Sizes, decided

Shapes = dict[str, tuple[int, ...]]
TINY = "tiny"
SHARDS = "share its weights with data_parallel_shard_degree"
# a third axis, rows and columns
AXES = 3
# of the sinusoids that a time becomes
TIME_WIDTH = 256
# pixels of a side that become one token: the autoencoder makes 8 into one, the model packs 2 of these
PIXELS_OF_TOKEN = 16
# scale, shift and gate; twice in a layer that has attention and hidden part one after the other
DOUBLE_MODULATIONS, SINGLE_MODULATIONS, FINAL_MODULATIONS = 6, 3, 2


class FluxEncoderConfig(Config):
    """What turns pictures and captions into what the model sees. None of it is trained."""

    t5_encoder: OrAuto[Text] = numerics("auto", examples=["assets/hf/t5-v1_1-xxl"])
    """Folder of a T5 encoder and its tokenizer, as transformers saves them; tiny: random features of words, made by the run itself."""
    clip_encoder: OrAuto[Text] = numerics("auto", examples=["assets/hf/clip-vit-large-patch14"])
    """Folder of a CLIP text model and its tokenizer, as transformers saves them; tiny: random features of words."""
    autoencoder_path: OrAuto[Text] = numerics(
        "auto", examples=["assets/hf/FLUX.1-dev/ae.safetensors"]
    )
    """The file ae.safetensors of FLUX.1, or one of its layout; tiny: the lowest frequencies of each 8 x 8 pixels."""
    max_t5_encoding_len: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[256])
    """Tokens of text that the model sees; shorter captions are filled up, longer ones are cut."""

    @property
    def extra(self) -> str | None:
        """The installation extra that the encoders need."""
        return None if {self.t5_encoder, self.clip_encoder} == {TINY} else "transformers"


class FluxConfig(ModelConfig):
    """FLUX.1: a transformer that turns noise into the latents of pictures, told what to show by T5 and CLIP.

    Layers first have separate weights for picture and text (double), then the same ones for both (single); attention of either sees all
    of both, in both directions.
    """

    name: Literal["flux"] = bookkeeping("flux")
    builds: ClassVar = "titanrun.models.flux.model:Flux"
    takes: ClassVar = "images"
    lacks: ClassVar[frozenset[Feature]] = frozenset(
        {"tensor parallelism", "pipeline parallelism", "expert parallelism"}
    )
    instead: ClassVar[dict[Feature, str]] = {
        "tensor parallelism": f"flux has no plan for it: {SHARDS}",
        "pipeline parallelism": f"its layers need text and time beside the stream: {SHARDS}",
        "expert parallelism": "it has no experts",
    }
    vocab_size: None = bookkeeping(None)
    """Always null: a picture has no vocabulary."""
    max_seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[4608])
    """Most tokens of text and picture together that the architecture is meant for; training.seq_len may not exceed it."""
    in_channels: OrAuto[PositiveInt] = numerics("auto", examples=[64])
    """Numbers of a token of the picture: 2 x 2 latents with the autoencoder's channels."""
    vec_in_dim: OrAuto[PositiveInt] = numerics("auto", examples=[768])
    """Width of what CLIP says about the whole caption."""
    context_in_dim: OrAuto[PositiveInt] = numerics("auto", examples=[4096])
    """Width of what T5 says about each token of the caption."""
    dim: OrAuto[PositiveInt] = numerics("auto", examples=[3072])
    """Width of the stream."""
    n_heads: OrAuto[PositiveInt] = numerics("auto", examples=[24])
    """Attention heads; each is dim / n_heads wide."""
    n_double_layers: OrAuto[LayerCount] = numerics("auto", examples=[19])
    """Layers with separate weights for picture and text; they come first."""
    n_single_layers: OrAuto[LayerCount] = numerics("auto", examples=[38])
    """Layers with the same weights for picture and text."""
    mlp_ratio: OrAuto[Annotated[float, Interval(gt=0, le=64)]] = numerics("auto", examples=[4.0])
    """Width of the hidden part over dim."""
    axes_dim: OrAuto[tuple[PositiveInt, ...]] = numerics("auto", examples=[[16, 56, 56]])
    """Width of a head that RoPE turns by each axis of a position: 0, row and column. Their sum is the width of a head."""
    theta: OrAuto[PositiveFloat] = numerics("auto", examples=[10000.0])
    """Base of RoPE's frequencies."""
    guidance_embed: NonNegativeFloat | None = numerics(None, examples=[3.5])
    """Strength of guidance that the model is told with every sample, and where nothing else is said when it draws; it has weights for it,
    as the published FLUX.1-dev has. null: a model without these weights."""
    encoder: FluxEncoderConfig = section(FluxEncoderConfig)
    classifier_free_guidance_prob: Fraction = numerics(0.0, examples=[0.1])
    """Share of samples whose caption T5 does not see, and independently of those whose caption CLIP does not see, so that sampling can be
    guided (https://arxiv.org/abs/2207.12598)."""
    all_timesteps: bool = bookkeeping(False)
    """Whether validation measures every held-out picture at all eight times (2 i + 1) / 16; false: the i-th picture at the time i mod 8."""

    def sizes_from_file(self) -> None:
        """Refuses flavor auto: a folder of diffusers says nothing of the encoders, and the sizes of FLUX.1 are flavors."""
        if self.flavor == AUTO:
            help = "name a flavor, such as dev, or write the sizes"
            raise fail(
                "conflict",
                "flux has no flavor auto: it reads no config.json",
                path=("model", "flavor"),
                help=help,
            )

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads that do not divide, and axes that do not make a head."""
        dim, heads, axes = sizes["dim"], sizes["n_heads"], sizes["axes_dim"]
        if AUTO in (dim, heads) or axes == AUTO:
            return []
        if dim % heads:
            return [
                conflict(
                    "n_heads", f"dim {dim} cannot be split over {heads} heads", "change one of them"
                )
            ]
        if len(axes) != AXES or any(width % 2 for width in axes):
            return [
                conflict(
                    "axes_dim",
                    f"axes_dim {axes} is not {AXES} even widths",
                    "RoPE turns pairs, by row and column and a third axis",
                )
            ]
        if sum(axes) != dim // heads:
            message = f"axes_dim {axes} make {sum(axes)}, and a head is {dim // heads} wide"
            return [conflict("axes_dim", message, f"make their sum {dim // heads}")]
        return []

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return decided(self.dim) // decided(self.n_heads)

    @property
    def hidden_dim(self) -> int:
        """Width of the hidden part."""
        return int(decided(self.dim) * decided(self.mlp_ratio))

    def parameter_shapes(self) -> Shapes:
        """Name and shape of every parameter, in the model's order."""
        dim, channels = decided(self.dim), decided(self.in_channels)
        shapes = linear("img_in", channels, dim) | linear(
            "txt_in", decided(self.context_in_dim), dim
        )
        shapes |= linear("time_in.0", TIME_WIDTH, dim) | linear("time_in.2", dim, dim)
        shapes |= linear("vector_in.0", decided(self.vec_in_dim), dim) | linear(
            "vector_in.2", dim, dim
        )
        if self.guidance_embed is not None:
            shapes |= linear("guidance_in.0", TIME_WIDTH, dim) | linear("guidance_in.2", dim, dim)
        double, single = self.double_shapes(), self.single_shapes()
        for layer in range(self.layer_count()):
            kind = double if layer < decided(self.n_double_layers) else single
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in kind.items()}
        return (
            shapes
            | linear("output.modulation", dim, FINAL_MODULATIONS * dim)
            | linear("output.linear", dim, channels)
        )

    def double_shapes(self) -> Shapes:
        """Parameters of a layer with separate weights for picture and text."""
        dim, hidden = decided(self.dim), self.hidden_dim
        stream = linear("modulation", dim, DOUBLE_MODULATIONS * dim) | linear("qkv", dim, 3 * dim)
        stream |= {"query_norm.weight": (self.head_dim,), "key_norm.weight": (self.head_dim,)}
        stream |= (
            linear("proj", dim, dim) | linear("mlp.0", dim, hidden) | linear("mlp.2", hidden, dim)
        )
        return {
            f"{side}.{name}": shape for side in ("img", "txt") for name, shape in stream.items()
        }

    def single_shapes(self) -> Shapes:
        """Parameters of a layer with the same weights for picture and text."""
        dim, hidden = decided(self.dim), self.hidden_dim
        shapes = linear("modulation", dim, SINGLE_MODULATIONS * dim) | linear(
            "linear1", dim, 3 * dim + hidden
        )
        shapes |= {"query_norm.weight": (self.head_dim,), "key_norm.weight": (self.head_dim,)}
        return shapes | linear("linear2", dim + hidden, dim)

    def layer_count(self) -> int:
        """Layers of both kinds."""
        return decided(self.n_double_layers) + decided(self.n_single_layers)

    def row_length(self, image_size: int) -> int:
        """Tokens of the text and of a square picture of so many pixels a side."""
        return decided(self.encoder.max_t5_encoding_len) + (image_size // PIXELS_OF_TOKEN) ** 2

    def pixels_of_token(self) -> int:
        """Pixels of a side that become one token."""
        return PIXELS_OF_TOKEN

    def output_width(self) -> int:
        """Numbers that the model gives for a token."""
        return decided(self.in_channels)

    def attention_width(self) -> int:
        """Key width plus value width of all heads of all layers."""
        return self.layer_count() * 2 * decided(self.dim)

    def idle_parameter_count(self) -> int:
        """Parameters that a token is not multiplied by: the other side's of a double layer, and what a sample meets once (its time, its
        caption as a whole, the modulations)."""
        idle = 0
        for name, shape in self.parameter_shapes().items():
            if any(
                part in name
                for part in (
                    "modulation",
                    "time_in.",
                    "vector_in.",
                    "guidance_in.",
                    "txt_in.",
                    ".txt.",
                )
            ):
                idle += prod(shape)
        return idle

    def key_value_width(self) -> int:
        """Keys and values are as wide as the stream."""
        return 2 * decided(self.dim)

    def stream_width(self) -> int:
        """Width of the stream."""
        return decided(self.dim)

    def kept_widths(self) -> tuple[int, int]:
        """Of a double layer, which keeps more: the inputs and outputs of both norms; queries, keys, values, what attention gives, and the
        hidden part before and after its activation. Nothing is split."""
        return 4 * decided(self.dim) + 5 * decided(self.dim) + 2 * self.hidden_dim, 0


def linear(name: str, inputs: int, outputs: int) -> Shapes:
    """A linear layer with a bias."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def conflict(field: str, message: str, help: str) -> Problem:
    """Two sizes that exclude each other."""
    return Problem("conflict", message, ("model", field), help=help)
