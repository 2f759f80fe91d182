"""Config of the flux family: sizes, encoders, and quantities that follow from them."""

from math import prod
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem, problem_error
from titanrun.config.types import (
    AUTO,
    Fraction,
    NonNegativeFloat,
    OrAuto,
    PositiveFloat,
    PositiveInt,
    Text,
)
from titanrun.models.shared.config import LayerCount, ModelConfig, ModelFeature, Sizes, unwrap_auto

Shapes = dict[str, tuple[int, ...]]
TINY = "tiny"
SHARD_HINT = "shard its weights with data_parallel_shard_degree"
# an axis that is always 0, rows and columns
NUM_AXES = 3
# number of sinusoids of a time
TIME_WIDTH = 256
# pixels per side of one token: the autoencoder reduces 8 to one latent, the model packs 2 of these
PIXELS_PER_TOKEN = 16
# scale, shift and gate; twice in a layer with attention and MLP one after the other
DOUBLE_MODULATIONS, SINGLE_MODULATIONS, FINAL_MODULATIONS = 6, 3, 2


class FluxEncoderConfig(Config):
    """Frozen encoders of images and captions."""

    t5_encoder: OrAuto[Text] = numerics("auto", examples=["assets/hf/t5-v1_1-xxl"])
    """Folder of a T5 encoder and its tokenizer in transformers' format. tiny: random features of
    words, built by the run itself.
    """
    clip_encoder: OrAuto[Text] = numerics("auto", examples=["assets/hf/clip-vit-large-patch14"])
    """Folder of a CLIP text model and its tokenizer in transformers' format. tiny: random features
    of words.
    """
    autoencoder_path: OrAuto[Text] = numerics(
        "auto", examples=["assets/hf/FLUX.1-dev/ae.safetensors"]
    )
    """File ae.safetensors of FLUX.1, or one with its layout. tiny: the lowest frequencies of each 8
    x 8 pixels.
    """
    max_t5_encoding_len: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[256])
    """Number of text tokens that the model sees. Shorter captions are padded, longer ones are
    truncated.
    """

    @property
    def extra(self) -> str | None:
        """Installation extra that the encoders need."""
        return None if {self.t5_encoder, self.clip_encoder} == {TINY} else "transformers"


class FluxConfig(ModelConfig):
    """FLUX.1: a transformer from noise to image latents, conditioned on text by T5 and CLIP.

    The first layers have separate weights for image and text (double), the last ones shared weights
    (single). In both, attention covers all tokens of image and text, in both directions.
    """

    name: Literal["flux"] = bookkeeping("flux")
    builds: ClassVar = "titanrun.models.flux.model:Flux"
    modality: ClassVar = "images"
    unsupported_features: ClassVar[frozenset[ModelFeature]] = frozenset(
        {"tensor parallelism", "pipeline parallelism", "expert parallelism"}
    )
    alternative: ClassVar[dict[ModelFeature, str]] = {
        "tensor parallelism": f"flux has no tensor-parallel plan: {SHARD_HINT}",
        (
            "pipeline parallelism"
        ): f"its layers need text and time in addition to the stream: {SHARD_HINT}",
        "expert parallelism": "it has no experts",
    }
    # narrower than the field of all families: there is no vocabulary
    vocab_size: None = bookkeeping(None)  # type: ignore[assignment]
    """Always null: an image has no vocabulary."""
    max_seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[4608])
    """Maximum number of tokens of text and image together. training.seq_len may not exceed it."""
    in_channels: OrAuto[PositiveInt] = numerics("auto", examples=[64])
    """Channels of an image token: 2 x 2 latents with the autoencoder's channels."""
    vec_in_dim: OrAuto[PositiveInt] = numerics("auto", examples=[768])
    """Width of CLIP's feature of the whole caption."""
    context_in_dim: OrAuto[PositiveInt] = numerics("auto", examples=[4096])
    """Width of T5's feature of each token of the caption."""
    dim: OrAuto[PositiveInt] = numerics("auto", examples=[3072])
    """Width of the residual stream."""
    n_heads: OrAuto[PositiveInt] = numerics("auto", examples=[24])
    """Number of attention heads, each dim / n_heads wide."""
    n_double_layers: OrAuto[LayerCount] = numerics("auto", examples=[19])
    """Number of layers with separate weights for image and text. They come first."""
    n_single_layers: OrAuto[LayerCount] = numerics("auto", examples=[38])
    """Number of layers with shared weights for image and text."""
    mlp_ratio: OrAuto[Annotated[float, Interval(gt=0, le=64)]] = numerics("auto", examples=[4.0])
    """Width of the MLP divided by dim."""
    axes_dim: OrAuto[tuple[PositiveInt, ...]] = numerics("auto", examples=[[16, 56, 56]])
    """Width of the part of a head that RoPE rotates by each axis of a position: 0, row and column.
    Their sum is the width of a head.
    """
    theta: OrAuto[PositiveFloat] = numerics("auto", examples=[10000.0])
    """Base of RoPE's frequencies."""
    guidance_embed: NonNegativeFloat | None = numerics(None, examples=[3.5])
    """Guidance strength that the model receives with every sample, and by default when it
    generates. It adds weights to the model, as in the published FLUX.1-dev. null: a model without
    these weights.
    """
    encoder: FluxEncoderConfig = section(FluxEncoderConfig)
    classifier_free_guidance_prob: Fraction = numerics(0.0, examples=[0.1])
    """Probability of hiding the caption of a sample from T5, and independently from CLIP, so that
    sampling can be guided (https://arxiv.org/abs/2207.12598).
    """
    all_timesteps: bool = bookkeeping(False)
    """Whether validation measures every image at all eight times (2 i + 1) / 16. false: the i-th
    image at the time i mod 8.
    """

    def find_file_sizes(self) -> None:
        """Raise ProblemsFound for flavor auto.

        A folder of diffusers does not describe the encoders, and the sizes of FLUX.1 are flavors.
        """
        if self.flavor == AUTO:
            hint = "name a flavor, such as dev, or write the sizes"
            raise problem_error(
                "conflict",
                "flux does not support flavor auto: it does not read config.json",
                path=("model", "flavor"),
                hint=hint,
            )

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find heads that do not divide, and axes that do not add up to a head."""
        dim, heads, axes = sizes["dim"], sizes["n_heads"], sizes["axes_dim"]
        if AUTO in (dim, heads) or axes == AUTO:
            return []
        if dim % heads:
            return [
                build_flux_size_problem(
                    "n_heads",
                    f"dim {dim} is not divisible by n_heads {heads}",
                    "change one of them",
                )
            ]
        if len(axes) != NUM_AXES or any(width % 2 for width in axes):
            return [
                build_flux_size_problem(
                    "axes_dim",
                    f"axes_dim {axes} must be {NUM_AXES} even widths",
                    "RoPE rotates pairs, by row, column and a third axis",
                )
            ]
        if sum(axes) != dim // heads:
            message = f"axes_dim {axes} add up to {sum(axes)}, but a head is {dim // heads} wide"
            return [
                build_flux_size_problem(
                    "axes_dim", message, f"use widths that add up to {dim // heads}"
                )
            ]
        return []

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return unwrap_auto(self.dim) // unwrap_auto(self.n_heads)

    @property
    def hidden_dim(self) -> int:
        """Width of the MLP."""
        return int(unwrap_auto(self.dim) * unwrap_auto(self.mlp_ratio))

    def parameter_shapes(self) -> Shapes:
        """Return name and shape of every parameter, in the model's order."""
        dim, channels = unwrap_auto(self.dim), unwrap_auto(self.in_channels)
        shapes = get_linear_shapes("img_in", channels, dim) | get_linear_shapes(
            "txt_in", unwrap_auto(self.context_in_dim), dim
        )
        shapes |= get_linear_shapes("time_in.0", TIME_WIDTH, dim) | get_linear_shapes(
            "time_in.2", dim, dim
        )
        shapes |= get_linear_shapes(
            "vector_in.0", unwrap_auto(self.vec_in_dim), dim
        ) | get_linear_shapes("vector_in.2", dim, dim)
        if self.guidance_embed is not None:
            shapes |= get_linear_shapes("guidance_in.0", TIME_WIDTH, dim) | get_linear_shapes(
                "guidance_in.2", dim, dim
            )
        double, single = self.double_shapes(), self.single_shapes()
        for layer in range(self.layer_count()):
            kind = double if layer < unwrap_auto(self.n_double_layers) else single
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in kind.items()}
        return (
            shapes
            | get_linear_shapes("output.modulation", dim, FINAL_MODULATIONS * dim)
            | get_linear_shapes("output.linear", dim, channels)
        )

    def double_shapes(self) -> Shapes:
        """Return the parameters of a layer with separate weights for image and text."""
        dim, hidden = unwrap_auto(self.dim), self.hidden_dim
        stream = get_linear_shapes("modulation", dim, DOUBLE_MODULATIONS * dim) | get_linear_shapes(
            "qkv", dim, 3 * dim
        )
        stream |= {"query_norm.weight": (self.head_dim,), "key_norm.weight": (self.head_dim,)}
        stream |= (
            get_linear_shapes("proj", dim, dim)
            | get_linear_shapes("mlp.0", dim, hidden)
            | get_linear_shapes("mlp.2", hidden, dim)
        )
        return {
            f"{side}.{name}": shape for side in ("img", "txt") for name, shape in stream.items()
        }

    def single_shapes(self) -> Shapes:
        """Return the parameters of a layer with shared weights for image and text."""
        dim, hidden = unwrap_auto(self.dim), self.hidden_dim
        shapes = get_linear_shapes("modulation", dim, SINGLE_MODULATIONS * dim) | get_linear_shapes(
            "linear1", dim, 3 * dim + hidden
        )
        shapes |= {"query_norm.weight": (self.head_dim,), "key_norm.weight": (self.head_dim,)}
        return shapes | get_linear_shapes("linear2", dim + hidden, dim)

    def layer_count(self) -> int:
        """Return the number of layers of both kinds."""
        return unwrap_auto(self.n_double_layers) + unwrap_auto(self.n_single_layers)

    def image_seq_len(self, image_size: int) -> int:
        """Return the tokens of a text and of a square image of `image_size` pixels per side."""
        return unwrap_auto(self.encoder.max_t5_encoding_len) + (image_size // PIXELS_PER_TOKEN) ** 2

    def pixels_per_token(self) -> int:
        """Return the pixels per side of one token."""
        return PIXELS_PER_TOKEN

    def output_dim(self) -> int:
        """Return the number of output channels per token."""
        return unwrap_auto(self.in_channels)

    def attention_dim(self) -> int:
        """Return key width plus value width of all heads of all layers."""
        return self.layer_count() * 2 * unwrap_auto(self.dim)

    def inactive_parameter_count(self) -> int:
        """Return the parameters by which an image token is not multiplied.

        These are the text weights of double layers, and weights used once per sample (for its time,
        its whole caption, and the modulations).
        """
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

    def kv_dim(self) -> int:
        """Return the width of keys plus values, each as wide as the stream."""
        return 2 * unwrap_auto(self.dim)

    def model_dim(self) -> int:
        """Return the width of the residual stream."""
        return unwrap_auto(self.dim)

    def layer_activation_elements(self) -> tuple[int, int]:
        """Return the elements that a double layer, which keeps more, keeps per token.

        These are inputs and outputs of both norms, queries, keys, values, attention outputs, and
        the MLP before and after its activation. None of them is split.
        """
        return 4 * unwrap_auto(self.dim) + 5 * unwrap_auto(self.dim) + 2 * self.hidden_dim, 0


def get_linear_shapes(name: str, inputs: int, outputs: int) -> Shapes:
    """Return the shapes of a linear layer with a bias."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def build_flux_size_problem(field: str, message: str, hint: str) -> Problem:
    """Build the problem of two sizes that exclude each other."""
    return Problem("conflict", message, ("model", field), hint=hint)
