"""FLUX.1: rectified-flow transformer with double- and single-stream layers.

Based on https://github.com/black-forest-labs/flux.

Shapes: B samples, I tokens of the image, T tokens of the text, N = T + I tokens of both, D model
width, A heads, H head width, P = H / 2 pairs, C channels of an image token, E width of T5, V width
of CLIP, F sinusoids of a time or of a guidance strength.
"""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import gelu, silu

from titanrun.models.flux.config import (
    DOUBLE_MODULATIONS,
    FINAL_MODULATIONS,
    SINGLE_MODULATIONS,
    TIME_WIDTH,
    FluxConfig,
)
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.rope import apply_rotary_emb_complex
from titanrun.models.shared.sdpa_attention import FullAttention
from titanrun.models.shared.weight_init import normal_, xavier_uniform_

NORM_EPS = 1e-6
MLP_STD = 0.02
# times from 0 to 1 are scaled to angles from 0 to 1000
TIME_FACTOR = 1000.0
LONGEST_PERIOD = 10000.0


class Flux(nn.Module):
    """Transformer from noisy latents, caption features and a time to a velocity.

    The velocity points from image to noise. Layers are called with the stream of text and image,
    the vector of time and caption, and the rotations of RoPE.
    """

    def __init__(self, config: FluxConfig, *, seq_len: int) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        dim = unwrap_auto(config.dim)
        # contract of get_model_parts: the modules before the layers are needed until the end
        self.tok_embeddings = self.norm = None
        self.img_in = nn.Linear(unwrap_auto(config.in_channels), dim)
        self.txt_in = nn.Linear(unwrap_auto(config.context_in_dim), dim)
        self.time_in = build_mlp_embedder(TIME_WIDTH, dim)
        self.vector_in = build_mlp_embedder(unwrap_auto(config.vec_in_dim), dim)
        if config.guidance_embed is not None:
            self.guidance_in = build_mlp_embedder(TIME_WIDTH, dim)
        doubles = [DoubleStreamLayer(config) for _ in range(unwrap_auto(config.n_double_layers))]
        singles = [SingleStreamLayer(config) for _ in range(unwrap_auto(config.n_single_layers))]
        self.layers = nn.ModuleDict(
            {str(index): layer for index, layer in enumerate([*doubles, *singles])}
        )
        self.output = FinalLayer(config)

    def forward(
        self,
        latents_BIC: Tensor,
        times_BF: Tensor,
        text_BTE: Tensor,
        pooled_BV: Tensor,
        positions_I2: Tensor,
        guidance_BF: Tensor | None = None,
    ) -> Tensor:
        """Return the velocity [B, I, C].

        Args:
            latents_BIC: noisy latents, packed. With context parallelism the local tokens, as for
                the text.
            times_BF: sinusoids of the time, where 1 is noise. Computed outside, since a 16-bit
                forward pass would round the time.
            text_BTE: T5 features of each token.
            pooled_BV: CLIP features of the caption.
            positions_I2: row and column of each image token.
            guidance_BF: sinusoids of the guidance strength, for a model with an embedding of it.
        """
        stream_BND = torch.cat([self.txt_in(text_BTE), self.img_in(latents_BIC)], dim=1)
        vector_BD = self.time_in(times_BF) + self.vector_in(pooled_BV)
        if guidance_BF is not None:
            vector_BD = vector_BD + self.guidance_in(guidance_BF)
        text_length = text_BTE.size(1)
        rope_NP = compute_rope_rotations(self.config, text_length, positions_I2)
        for layer in self.layers.values():
            stream_BND = layer(stream_BND, vector_BD, rope_NP, text_length)
        velocity_BIC: Tensor = self.output(stream_BND[:, text_length:], vector_BD)
        return velocity_BIC

    def init_weights(self, generator: Generator | None = None) -> None:
        """Initialize every parameter. Modulations and output start at zero, like the velocity."""
        for name, module in self.named_modules():
            if isinstance(module, nn.RMSNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                if name.endswith("modulation") or name == "output.linear":
                    nn.init.zeros_(module.weight)
                elif name.startswith(("time_in.", "vector_in.", "guidance_in.")):
                    normal_(module.weight, std=MLP_STD, generator=generator)
                else:
                    xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)


class ModalityStream(nn.Module):
    """Weights of the image, or of the text, in a double layer."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        dim, self.head_dim = unwrap_auto(config.dim), config.head_dim
        self.modulation = nn.Linear(dim, DOUBLE_MODULATIONS * dim)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.query_norm, self.key_norm = build_head_norm(config), build_head_norm(config)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, config.hidden_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.hidden_dim, dim),
        )

    def compute_modulations(self, vector_BD: Tensor) -> list[Tensor]:
        """Return shift, scale and gate of attention, then of the MLP, each [B, 1, D]."""
        return list(self.modulation(silu(vector_BD)).unsqueeze(1).chunk(DOUBLE_MODULATIONS, dim=-1))

    def project_qkv(
        self, stream: Tensor, shift: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the heads, each [B, A, tokens, H]."""
        return split_heads(
            self.qkv(apply_modulation(self.norm(stream), shift, scale)),
            self.query_norm,
            self.key_norm,
        )

    def add_branches(self, stream: Tensor, attended: Tensor, modulations: list[Tensor]) -> Tensor:
        """Return the stream with the outputs of attention and MLP added."""
        _, _, gate, hidden_shift, hidden_scale, hidden_gate = modulations
        stream = stream + gate * self.proj(attended)
        joined: Tensor = stream + hidden_gate * self.mlp(
            apply_modulation(self.norm(stream), hidden_shift, hidden_scale)
        )
        return joined


class DoubleStreamLayer(nn.Module):
    """Joint attention over text and image, which have separate weights."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.img = ModalityStream(config)
        self.txt = ModalityStream(config)
        self.attention = FullAttention()

    def forward(
        self, stream_BND: Tensor, vector_BD: Tensor, rope_NP: Tensor, text_length: int
    ) -> Tensor:
        """Return the stream [B, N, D] after the layer."""
        text_BTD, image_BID = stream_BND.split(
            [text_length, stream_BND.size(1) - text_length], dim=1
        )
        text_modulations, image_modulations = (
            self.txt.compute_modulations(vector_BD),
            self.img.compute_modulations(vector_BD),
        )
        text_qkv = self.txt.project_qkv(text_BTD, *text_modulations[:2])
        image_qkv = self.img.project_qkv(image_BID, *image_modulations[:2])
        q_BANH, k_BANH, v_BANH = (
            torch.cat(pair, dim=2) for pair in zip(text_qkv, image_qkv, strict=True)
        )
        attended_BND = compute_joint_attention(self.attention, q_BANH, k_BANH, v_BANH, rope_NP)
        text_BTD = self.txt.add_branches(text_BTD, attended_BND[:, :text_length], text_modulations)
        image_BID = self.img.add_branches(
            image_BID, attended_BND[:, text_length:], image_modulations
        )
        return torch.cat([text_BTD, image_BID], dim=1)


class SingleStreamLayer(nn.Module):
    """Attention and MLP in parallel, with shared weights for text and image."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.split_sizes = [3 * unwrap_auto(config.dim), config.hidden_dim]
        dim = unwrap_auto(config.dim)
        self.modulation = nn.Linear(dim, SINGLE_MODULATIONS * dim)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS, elementwise_affine=False)
        self.linear1 = nn.Linear(dim, sum(self.split_sizes))
        self.query_norm, self.key_norm = build_head_norm(config), build_head_norm(config)
        self.linear2 = nn.Linear(dim + config.hidden_dim, dim)
        self.attention = FullAttention()

    def forward(
        self, stream_BND: Tensor, vector_BD: Tensor, rope_NP: Tensor, text_length: int
    ) -> Tensor:
        """Return the stream [B, N, D] after the layer."""
        shift, scale, gate = (
            self.modulation(silu(vector_BD)).unsqueeze(1).chunk(SINGLE_MODULATIONS, dim=-1)
        )
        qkv, hidden = self.linear1(apply_modulation(self.norm(stream_BND), shift, scale)).split(
            self.split_sizes, dim=-1
        )
        attended_BND = compute_joint_attention(
            self.attention, *split_heads(qkv, self.query_norm, self.key_norm), rope_NP
        )
        added_BND = self.linear2(
            torch.cat([attended_BND, gelu(hidden, approximate="tanh")], dim=-1)
        )
        out_BND: Tensor = stream_BND + gate * added_BND
        return out_BND


class FinalLayer(nn.Module):
    """Final modulated norm and output projection."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        dim = unwrap_auto(config.dim)
        self.modulation = nn.Linear(dim, FINAL_MODULATIONS * dim)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS, elementwise_affine=False)
        self.linear = nn.Linear(dim, unwrap_auto(config.in_channels))

    def forward(self, stream_BID: Tensor, vector_BD: Tensor) -> Tensor:
        """Return the velocity [B, I, C]."""
        shift, scale = (
            self.modulation(silu(vector_BD)).unsqueeze(1).chunk(FINAL_MODULATIONS, dim=-1)
        )
        velocity_BIC: Tensor = self.linear(apply_modulation(self.norm(stream_BID), shift, scale))
        # a linear layer with a bias returns a view, about which FSDP warns each time
        return velocity_BIC.clone()


def build_mlp_embedder(inputs: int, dim: int) -> nn.Sequential:
    """Build an MLP to a vector of the model's width."""
    return nn.Sequential(nn.Linear(inputs, dim), nn.SiLU(), nn.Linear(dim, dim))


def build_head_norm(config: FluxConfig) -> nn.RMSNorm:
    """Build the norm of the queries or keys of each head."""
    return nn.RMSNorm(config.head_dim, eps=NORM_EPS)


def apply_modulation(normed: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scale and shift a normalized tensor."""
    return (1 + scale) * normed + shift


def split_heads(
    qkv_BND: Tensor, query_norm: nn.RMSNorm, key_norm: nn.RMSNorm
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalized queries and keys, and values, each [B, A, N, H]."""
    q, k, v = qkv_BND.unflatten(-1, (3, -1, query_norm.normalized_shape[0])).permute(2, 0, 3, 1, 4)
    return query_norm(q).to(v.dtype), key_norm(k).to(v.dtype), v


def compute_joint_attention(
    attention: nn.Module, q_BANH: Tensor, k_BANH: Tensor, v_BANH: Tensor, rope_NP: Tensor
) -> Tensor:
    """Return the attention [B, N, D] of each token to all tokens, earlier and later."""
    out_BANH: Tensor = attention(
        apply_rotary_emb_complex(q_BANH, rope_NP),
        apply_rotary_emb_complex(k_BANH, rope_NP),
        v_BANH,
        None,
    )
    return out_BANH.transpose(1, 2).flatten(2)


def get_image_positions(rows: int, columns: int) -> Tensor:
    """Return row and column of each image token, row by row: [I, 2] int64."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(columns))


def compute_rope_rotations(config: FluxConfig, text_length: int, places_I2: Tensor) -> Tensor:
    """Return exp(i position frequency) for text, then image tokens: [N, P] complex64.

    The positions of text are 0.
    """
    angles = []
    positions_I3 = torch.cat([torch.zeros_like(places_I2[:, :1]), places_I2], dim=1)
    positions_N3 = torch.cat(
        [positions_I3.new_zeros(text_length, positions_I3.size(1)), positions_I3]
    ).double()
    for axis, width in enumerate(unwrap_auto(config.axes_dim)):
        # in fp64: in fp32 products of positions and small frequencies lose digits that the angle
        # needs
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=places_I2.device) / width
        angles.append(torch.outer(positions_N3[:, axis], unwrap_auto(config.theta) ** -exponents))
    angles_NP = torch.cat(angles, dim=1)
    return torch.polar(torch.ones_like(angles_NP), angles_NP).to(torch.complex64)


def compute_timestep_features(times_B: Tensor) -> Tensor:
    """Return cosines, then sines, of times from 0 to 1: [B, F] in fp32.

    The frequencies decrease. Guidance strengths are encoded in the same way.
    """
    half = TIME_WIDTH // 2
    # operations in the order of the original: angles reach 1000, which amplifies rounding of a
    # frequency
    frequencies_H = torch.exp(
        -math.log(LONGEST_PERIOD)
        * torch.arange(half, dtype=torch.float32, device=times_B.device)
        / half
    )
    angles_BH = torch.outer(TIME_FACTOR * times_B.float(), frequencies_H)
    return torch.cat([angles_BH.cos(), angles_BH.sin()], dim=1)


def compute_guidance_features(strength: float, samples: int) -> Tensor:
    """Return the sinusoids of one guidance strength for all samples: [B, F] in fp32."""
    return compute_timestep_features(torch.full((samples,), strength))
