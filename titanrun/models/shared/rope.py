"""Rotary position embedding (https://arxiv.org/abs/2104.09864): of neighbours in complex numbers, or of halves by cosine and sine.

Shapes: B batch, T tokens of a row, N heads, H head width, P = H / 2 pairs, S rows of the table, R = 2 H cosines and sines.
"""

import math

import torch
from torch import Tensor

from titanrun.models.shared.config import (
    Llama3RopeScalingConfig,
    RopeConfig,
    RopeScalingConfig,
    YarnRopeScalingConfig,
    decided,
)

SHORTEST_RAMP = 0.001


def pair_frequencies(
    theta: float,
    scaling: RopeScalingConfig | None,
    *,
    head_dim: int,
    device: torch.device | None = None,
) -> Tensor:
    """What the angles of the pairs grow by from token to token: theta^(-2p/H), stretched as `scaling` says; [P] in fp32."""
    exponents_P = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies_P = 1.0 / theta**exponents_P
    if scaling is None:
        return frequencies_P
    stretched_P: Tensor = scaling.builder()(scaling, frequencies=frequencies_P, theta=theta)
    return stretched_P


def rope_table(
    config: RopeConfig, *, head_dim: int, seq_len: int, device: torch.device | None = None
) -> Tensor:
    """exp(i t f_p) for the positions t < seq_len, times what the scaling adds: [S, P] complex64, whatever the default dtype is."""
    scaling = decided(config.scaling)
    frequencies_P = pair_frequencies(
        decided(config.theta), scaling, head_dim=head_dim, device=device
    )
    positions_S = torch.arange(seq_len, dtype=torch.float32, device=device)
    angles_SP = torch.outer(positions_S, frequencies_P)
    return torch.polar(
        torch.full_like(angles_SP, 1.0 if scaling is None else scaling.magnitude()), angles_SP
    )


def llama3_scaling(config: Llama3RopeScalingConfig, *, frequencies: Tensor, theta: float) -> Tensor:
    """Frequencies [P] stretched as in Llama 3.1: divided by `factor` where the wavelength is long, a linear ramp in between."""
    wavelengths_P = 2 * math.pi / frequencies
    original = config.original_max_position_embeddings
    low, high = config.low_freq_factor, config.high_freq_factor
    # low == high leaves no ramp: what is computed for it then, inf or nan, is never selected
    share_kept_P = (original / wavelengths_P - low) / torch.tensor(
        high - low, device=frequencies.device
    )
    stretched_P = frequencies / config.factor
    ramp_P = (1 - share_kept_P) * stretched_P + share_kept_P * frequencies
    scaled_P = torch.where(wavelengths_P > original / low, stretched_P, ramp_P)
    return torch.where(wavelengths_P < original / high, frequencies, scaled_P)


def yarn_scaling(config: YarnRopeScalingConfig, *, frequencies: Tensor, theta: float) -> Tensor:
    """Frequencies [P] slowed down as YaRN does: a ramp from the pair that turns beta_fast times in the original context to the one that
    turns beta_slow times."""
    pairs = frequencies.numel()

    def pair_that_turns(times: float) -> float:
        return (
            pairs
            * math.log(config.original_max_position_embeddings / (times * 2 * math.pi))
            / math.log(theta)
        )

    first, last = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # a ramp of no length would divide by zero
    length = last - first if last != first else SHORTEST_RAMP
    slowed_P = (
        (torch.arange(pairs, dtype=torch.float32, device=frequencies.device) - first) / length
    ).clamp(0, 1)
    return frequencies / config.factor * slowed_P + frequencies * (1 - slowed_P)


def rope_rows(table_SP: Tensor, seq_len: int, positions_BT: Tensor | None) -> Tensor:
    """The rows of the table that the tokens need: [1, T, 1, P], or [B, T, 1, P] where each row has positions of its own."""
    assert seq_len <= table_SP.size(0), (
        f"{seq_len} tokens in a row, and a RoPE table for {table_SP.size(0)}"
    )
    rows = table_SP[:seq_len].unsqueeze(0) if positions_BT is None else table_SP[positions_BT]
    return rows.unsqueeze(2)


def rotate(x_BTNH: Tensor, rows_BT1P: Tensor) -> Tensor:
    """Neighbouring pairs (x_2p, x_2p+1) as complex numbers times their rows; computed in fp32, returned in x's dtype."""
    assert rows_BT1P.dtype == torch.complex64, (
        "the table was cast: call init_weights after changing a model's dtype"
    )
    x_BTNP = torch.view_as_complex(x_BTNH.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(x_BTNP * rows_BT1P).flatten(-2).type_as(x_BTNH)


def cos_sin_table(
    theta: float,
    *,
    head_dim: int,
    seq_len: int,
    scaling: RopeScalingConfig | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """cos(t f) and sin(t f) for the positions t < seq_len, each of the P frequencies twice, times what the scaling adds: [S, R] in fp32."""
    frequencies_P = pair_frequencies(theta, scaling, head_dim=head_dim, device=device)
    angles_SP = torch.outer(
        torch.arange(seq_len, dtype=torch.float32, device=device), frequencies_P
    )
    angles_SH = torch.cat([angles_SP, angles_SP], dim=-1)
    table_SR = torch.cat([angles_SH.cos(), angles_SH.sin()], dim=-1)
    return table_SR if scaling is None else table_SR * scaling.magnitude()


def rotate_halves(x_BTNH: Tensor, rows_BT1R: Tensor) -> Tensor:
    """Pairs (x_p, x_p+H/2) turned by their rows, in x's dtype."""
    cos_BT1H, sin_BT1H = rows_BT1R.to(x_BTNH.dtype).chunk(2, dim=-1)
    first, second = x_BTNH.chunk(2, dim=-1)
    return x_BTNH * cos_BT1H + torch.cat([-second, first], dim=-1) * sin_BT1H
