"""FLUX.1 (https://github.com/black-forest-labs/flux): rectified-flow transformer with double- and single-stream layers.

Shapes: B samples, I tokens of the picture, T tokens of the text, N = T + I tokens of both, D model width, A heads, H head width, P = H / 2
pairs, C numbers of a picture's token, E width of T5, V width of CLIP, F sinusoids of a time or of a strength of guidance.
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
from titanrun.models.shared.attention import EverythingSeen
from titanrun.models.shared.config import decided
from titanrun.models.shared.initialization import normal_, xavier_uniform_

NORM_EPS = 1e-6
MLP_STD = 0.02
# times from 0 to 1 become angles as if they were 0 to 1000
TIME_FACTOR = 1000.0
LONGEST_PERIOD = 10000.0


class Flux(nn.Module):
    """Noisy latents, what the encoders say of the caption, and a time, to the velocity from picture to noise.

    Its layers are called with the stream of text and picture, the vector of time and caption, and the rotations of RoPE.
    """

    def __init__(self, config: FluxConfig, *, seq_len: int) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        dim = decided(config.dim)
        # the contract of a model's parts: what stands before the layers here is needed to the end
        self.tok_embeddings = self.norm = None
        self.img_in = nn.Linear(decided(config.in_channels), dim)
        self.txt_in = nn.Linear(decided(config.context_in_dim), dim)
        self.time_in = vector_mlp(TIME_WIDTH, dim)
        self.vector_in = vector_mlp(decided(config.vec_in_dim), dim)
        if config.guidance_embed is not None:
            self.guidance_in = vector_mlp(TIME_WIDTH, dim)
        doubles = [DoubleLayer(config) for _ in range(decided(config.n_double_layers))]
        singles = [SingleLayer(config) for _ in range(decided(config.n_single_layers))]
        self.layers = nn.ModuleDict(
            {str(index): layer for index, layer in enumerate([*doubles, *singles])}
        )
        self.output = Output(config)

    def forward(
        self,
        latents_BIC: Tensor,
        times_BF: Tensor,
        text_BTE: Tensor,
        pooled_BV: Tensor,
        places_I2: Tensor,
        guidance_BF: Tensor | None = None,
    ) -> Tensor:
        """The velocity [B, I, C].

        Args:
            latents_BIC: noisy latents, packed; of a row that ranks share, this rank's tokens, as of the text.
            times_BF: sinusoids of the time, 1 being noise. Made outside, since a 16-bit forward pass would round the time.
            text_BTE: what T5 says of each token.
            pooled_BV: what CLIP says of the caption.
            places_I2: row and column of each token of the picture.
            guidance_BF: sinusoids of the strength of guidance, for a model with an embedding of it.
        """
        stream_BND = torch.cat([self.txt_in(text_BTE), self.img_in(latents_BIC)], dim=1)
        vector_BD = self.time_in(times_BF) + self.vector_in(pooled_BV)
        if guidance_BF is not None:
            vector_BD = vector_BD + self.guidance_in(guidance_BF)
        text_length = text_BTE.size(1)
        rope_NP = rotations(self.config, text_length, places_I2)
        for layer in self.layers.values():
            stream_BND = layer(stream_BND, vector_BD, rope_NP, text_length)
        velocity_BIC: Tensor = self.output(stream_BND[:, text_length:], vector_BD)
        return velocity_BIC

    def init_weights(self, generator: Generator | None = None) -> None:
        """Fill every parameter: what modulates begins with nothing, and so does the velocity."""
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


class Stream(nn.Module):
    """One side of a double layer: the weights of the picture, or of the text."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        dim, self.head_dim = decided(config.dim), config.head_dim
        self.modulation = nn.Linear(dim, DOUBLE_MODULATIONS * dim)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.query_norm, self.key_norm = head_norm(config), head_norm(config)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, config.hidden_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.hidden_dim, dim),
        )

    def modulations(self, vector_BD: Tensor) -> list[Tensor]:
        """Shift, scale and gate of attention, then of the hidden part, each [B, 1, D]."""
        return list(self.modulation(silu(vector_BD)).unsqueeze(1).chunk(DOUBLE_MODULATIONS, dim=-1))

    def projections(self, stream: Tensor, shift: Tensor, scale: Tensor) -> list[Tensor]:
        """Queries, keys and values of the heads, [B, A, tokens, H]."""
        return heads(
            self.qkv(modulated(self.norm(stream), shift, scale)), self.query_norm, self.key_norm
        )

    def joined(self, stream: Tensor, attended: Tensor, modulations: list[Tensor]) -> Tensor:
        """The stream after attention and the hidden part have added to it."""
        _, _, gate, hidden_shift, hidden_scale, hidden_gate = modulations
        stream = stream + gate * self.proj(attended)
        joined: Tensor = stream + hidden_gate * self.mlp(
            modulated(self.norm(stream), hidden_shift, hidden_scale)
        )
        return joined


class DoubleLayer(nn.Module):
    """Attention over text and picture, which keep weights of their own."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.img = Stream(config)
        self.txt = Stream(config)
        self.attention = EverythingSeen()

    def forward(
        self, stream_BND: Tensor, vector_BD: Tensor, rope_NP: Tensor, text_length: int
    ) -> Tensor:
        text_BTD, picture_BID = stream_BND.split(
            [text_length, stream_BND.size(1) - text_length], dim=1
        )
        text_modulations, picture_modulations = (
            self.txt.modulations(vector_BD),
            self.img.modulations(vector_BD),
        )
        of_text = self.txt.projections(text_BTD, *text_modulations[:2])
        of_picture = self.img.projections(picture_BID, *picture_modulations[:2])
        qkv_BANH = [torch.cat(pair, dim=2) for pair in zip(of_text, of_picture, strict=True)]
        attended_BND = attended(self.attention, *qkv_BANH, rope_NP)
        text_BTD = self.txt.joined(text_BTD, attended_BND[:, :text_length], text_modulations)
        picture_BID = self.img.joined(
            picture_BID, attended_BND[:, text_length:], picture_modulations
        )
        return torch.cat([text_BTD, picture_BID], dim=1)


class SingleLayer(nn.Module):
    """Attention and hidden part side by side, with the same weights for text and picture."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.widths = [3 * decided(config.dim), config.hidden_dim]
        dim = decided(config.dim)
        self.modulation = nn.Linear(dim, SINGLE_MODULATIONS * dim)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS, elementwise_affine=False)
        self.linear1 = nn.Linear(dim, sum(self.widths))
        self.query_norm, self.key_norm = head_norm(config), head_norm(config)
        self.linear2 = nn.Linear(dim + config.hidden_dim, dim)
        self.attention = EverythingSeen()

    def forward(
        self, stream_BND: Tensor, vector_BD: Tensor, rope_NP: Tensor, text_length: int
    ) -> Tensor:
        shift, scale, gate = (
            self.modulation(silu(vector_BD)).unsqueeze(1).chunk(SINGLE_MODULATIONS, dim=-1)
        )
        qkv, hidden = self.linear1(modulated(self.norm(stream_BND), shift, scale)).split(
            self.widths, dim=-1
        )
        attended_BND = attended(
            self.attention, *heads(qkv, self.query_norm, self.key_norm), rope_NP
        )
        added_BND = self.linear2(
            torch.cat([attended_BND, gelu(hidden, approximate="tanh")], dim=-1)
        )
        return stream_BND + gate * added_BND


class Output(nn.Module):
    """The last norm, shifted and scaled by the vector, and what makes numbers of a token."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        dim = decided(config.dim)
        self.modulation = nn.Linear(dim, FINAL_MODULATIONS * dim)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS, elementwise_affine=False)
        self.linear = nn.Linear(dim, decided(config.in_channels))

    def forward(self, stream_BID: Tensor, vector_BD: Tensor) -> Tensor:
        shift, scale = (
            self.modulation(silu(vector_BD)).unsqueeze(1).chunk(FINAL_MODULATIONS, dim=-1)
        )
        velocity_BIC: Tensor = self.linear(modulated(self.norm(stream_BID), shift, scale))
        # a linear layer with a bias gives a view, of which FSDP warns each time
        return velocity_BIC.clone()


def vector_mlp(inputs: int, dim: int) -> nn.Sequential:
    """What makes a vector of the model's width."""
    return nn.Sequential(nn.Linear(inputs, dim), nn.SiLU(), nn.Linear(dim, dim))


def head_norm(config: FluxConfig) -> nn.RMSNorm:
    """Norm of the queries or keys of each head."""
    return nn.RMSNorm(config.head_dim, eps=NORM_EPS)


def modulated(normed: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scaled and shifted as the vector says."""
    return (1 + scale) * normed + shift


def heads(qkv_BND: Tensor, query_norm: nn.RMSNorm, key_norm: nn.RMSNorm) -> list[Tensor]:
    """Queries and keys, normed, and values, each [B, A, N, H]."""
    q, k, v = qkv_BND.unflatten(-1, (3, -1, query_norm.normalized_shape[0])).permute(2, 0, 3, 1, 4)
    return [query_norm(q).to(v.dtype), key_norm(k).to(v.dtype), v]


def attended(
    attention: nn.Module, q_BANH: Tensor, k_BANH: Tensor, v_BANH: Tensor, rope_NP: Tensor
) -> Tensor:
    """What each token sees of all others, those behind it too: [B, N, D]."""
    out_BANH: Tensor = attention(turned(q_BANH, rope_NP), turned(k_BANH, rope_NP), v_BANH, None)
    return out_BANH.transpose(1, 2).flatten(2)


def turned(x_BANH: Tensor, rope_NP: Tensor) -> Tensor:
    """Neighbours of each head turned by RoPE, in fp32."""
    pairs_BANP = torch.view_as_complex(x_BANH.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs_BANP * rope_NP).flatten(-2).to(x_BANH.dtype)


def places_of(rows: int, columns: int) -> Tensor:
    """Row and column of each token of a picture, row by row: [I, 2] int64."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(columns))


def rotations(config: FluxConfig, text_length: int, places_I2: Tensor) -> Tensor:
    """exp(i position frequency) for text, whose positions are 0, then for the picture's tokens: [N, P] complex64."""
    angles = []
    positions_I3 = torch.cat([torch.zeros_like(places_I2[:, :1]), places_I2], dim=1)
    positions_N3 = torch.cat(
        [positions_I3.new_zeros(text_length, positions_I3.size(1)), positions_I3]
    ).double()
    for axis, width in enumerate(decided(config.axes_dim)):
        # in fp64: products of positions and small frequencies lose digits that the angle needs
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=places_I2.device) / width
        angles.append(torch.outer(positions_N3[:, axis], decided(config.theta) ** -exponents))
    angles_NP = torch.cat(angles, dim=1)
    return torch.polar(torch.ones_like(angles_NP), angles_NP).to(torch.complex64)


def time_features(times_B: Tensor) -> Tensor:
    """Cosines, then sines, of times from 0 to 1, or of strengths of guidance, at falling frequencies: [B, F] in fp32."""
    half = TIME_WIDTH // 2
    # in the order of the original: angles reach 1000, where another rounding of a frequency shows
    frequencies_H = torch.exp(
        -math.log(LONGEST_PERIOD)
        * torch.arange(half, dtype=torch.float32, device=times_B.device)
        / half
    )
    angles_BH = torch.outer(TIME_FACTOR * times_B.float(), frequencies_H)
    return torch.cat([angles_BH.cos(), angles_BH.sin()], dim=1)


def guidance_features(strength: float, samples: int) -> Tensor:
    """The sinusoids of one strength of guidance for all samples: [B, F] in fp32."""
    return time_features(torch.full((samples,), strength))
