"""Rotary position embedding: of neighbors as complex numbers, or of halves by cos and sin.

Described in https://arxiv.org/abs/2104.09864.

Shapes: B batch, T tokens of a sequence, N heads, H head width, P = H / 2 pairs, S rows of the
cache, R = 2 H cosines and sines.
"""

import math

import torch
from torch import Tensor

from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.rope_config import (
    Llama3RopeScalingConfig,
    RopeConfig,
    RopeScalingConfig,
    YarnRopeScalingConfig,
)

MIN_RAMP_LENGTH = 0.001


def compute_rope_frequencies(
    theta: float,
    scaling: RopeScalingConfig | None,
    *,
    head_dim: int,
    device: torch.device | None = None,
) -> Tensor:
    """Return the angle per token of each pair: theta^(-2p/H), scaled by `scaling`.

    The result is [P] in fp32.
    """
    exponents_P = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies_P = 1.0 / theta**exponents_P
    if scaling is None:
        return frequencies_P
    stretched_P: Tensor = scaling.load_builder()(scaling, frequencies=frequencies_P, theta=theta)
    return stretched_P


def build_complex_rope_cache(
    config: RopeConfig, *, head_dim: int, seq_len: int, device: torch.device | None = None
) -> Tensor:
    """Return exp(i t f_p) for the positions t < seq_len: [S, P] complex64.

    It includes the factor of the scaling. The default dtype has no effect.
    """
    scaling = unwrap_auto(config.scaling)
    frequencies_P = compute_rope_frequencies(
        unwrap_auto(config.theta), scaling, head_dim=head_dim, device=device
    )
    positions_S = torch.arange(seq_len, dtype=torch.float32, device=device)
    angles_SP = torch.outer(positions_S, frequencies_P)
    return torch.polar(
        torch.full_like(angles_SP, 1.0 if scaling is None else scaling.cos_sin_scale()), angles_SP
    )


def apply_llama3_scaling(
    config: Llama3RopeScalingConfig, *, frequencies: Tensor, theta: float
) -> Tensor:
    """Return frequencies [P] scaled as in Llama 3.1.

    They are divided by `factor` for long wavelengths, with a linear ramp to short ones.
    """
    wavelengths_P = 2 * math.pi / frequencies
    original = config.original_max_position_embeddings
    low, high = config.low_freq_factor, config.high_freq_factor
    # without a ramp (low == high) these values are inf or nan, but never selected
    share_kept_P = (original / wavelengths_P - low) / torch.tensor(
        high - low, device=frequencies.device
    )
    stretched_P = frequencies / config.factor
    ramp_P = (1 - share_kept_P) * stretched_P + share_kept_P * frequencies
    scaled_P = torch.where(wavelengths_P > original / low, stretched_P, ramp_P)
    return torch.where(wavelengths_P < original / high, frequencies, scaled_P)


def apply_yarn_scaling(
    config: YarnRopeScalingConfig, *, frequencies: Tensor, theta: float
) -> Tensor:
    """Return frequencies [P] scaled as in YaRN.

    The ramp begins at the pair that rotates beta_fast times in the original context, and ends at
    the pair that rotates beta_slow times.
    """
    pairs = frequencies.numel()

    def find_pair_index(times: float) -> float:
        return (
            pairs
            * math.log(config.original_max_position_embeddings / (times * 2 * math.pi))
            / math.log(theta)
        )

    first, last = find_pair_index(config.beta_fast), find_pair_index(config.beta_slow)
    if config.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # a ramp of length zero would divide by zero
    length = last - first if last != first else MIN_RAMP_LENGTH
    slowed_P = (
        (torch.arange(pairs, dtype=torch.float32, device=frequencies.device) - first) / length
    ).clamp(0, 1)
    return frequencies / config.factor * slowed_P + frequencies * (1 - slowed_P)


def select_rope_positions(table_SP: Tensor, seq_len: int, positions_BT: Tensor | None) -> Tensor:
    """Return the rows of the cache for the tokens: [1, T, 1, P] or [B, T, 1, P].

    The latter is for separate positions in each sequence, which may be shorter than its tokens:
    documents that are packed together each count from 0.
    """
    assert positions_BT is not None or seq_len <= table_SP.size(0), (
        f"sequence of {seq_len:,} tokens, but the RoPE cache has {table_SP.size(0):,} positions"
    )
    rows = table_SP[:seq_len].unsqueeze(0) if positions_BT is None else table_SP[positions_BT]
    return rows.unsqueeze(2)


def apply_rotary_emb_complex(x_BTNH: Tensor, rows_BT1P: Tensor) -> Tensor:
    """Rotate neighboring pairs (x_2p, x_2p+1) by complex rows that can be broadcast to them.

    It computes in fp32 and returns x's dtype. Compiled code multiplies real numbers, since torch's
    compiler has no code for complex ones. Otherwise one complex product replaces seven operations:
    a tenth of the time on a CPU, with the same bits for head widths that are multiples of 16. The
    rows stay complex until here, because FSDP would cast real ones.
    """
    assert rows_BT1P.dtype == torch.complex64, (
        "the RoPE cache was cast: call init_weights after changing a model's dtype"
    )
    pairs_BTNP2 = x_BTNH.float().unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling() or not has_whole_pairs(pairs_BTNP2):
        return multiply_as_real(pairs_BTNP2, rows_BT1P).flatten(-2).type_as(x_BTNH)
    rotated_BTNP = torch.view_as_complex(pairs_BTNP2) * rows_BT1P
    return torch.view_as_real(rotated_BTNP).flatten(-2).type_as(x_BTNH)


def has_whole_pairs(pairs_BTNP2: Tensor) -> bool:
    """Return whether the pairs lie in memory as complex numbers do: from even places on."""
    *strides, last = pairs_BTNP2.stride()
    return last == 1 and not any(place % 2 for place in (*strides, pairs_BTNP2.storage_offset()))


def multiply_as_real(pairs_BTNP2: Tensor, rows_BT1P: Tensor) -> Tensor:
    """Return the complex products of pairs and rows, as pairs, by products of real numbers."""
    real_BTNP, imag_BTNP = pairs_BTNP2.unbind(-1)
    cos_BT1P, sin_BT1P = torch.view_as_real(rows_BT1P).unbind(-1)
    return torch.stack(
        [
            real_BTNP * cos_BT1P - imag_BTNP * sin_BT1P,
            real_BTNP * sin_BT1P + imag_BTNP * cos_BT1P,
        ],
        dim=-1,
    )


def build_cos_sin_rope_cache(
    theta: float,
    *,
    head_dim: int,
    seq_len: int,
    scaling: RopeScalingConfig | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Return cos(t f) and sin(t f) for the positions t < seq_len: [S, R] in fp32.

    Each of the P frequencies occurs twice. It includes the factor of the scaling.
    """
    frequencies_P = compute_rope_frequencies(theta, scaling, head_dim=head_dim, device=device)
    angles_SP = torch.outer(
        torch.arange(seq_len, dtype=torch.float32, device=device), frequencies_P
    )
    angles_SH = torch.cat([angles_SP, angles_SP], dim=-1)
    table_SR = torch.cat([angles_SH.cos(), angles_SH.sin()], dim=-1)
    return table_SR if scaling is None else table_SR * scaling.cos_sin_scale()


def apply_rotary_emb_cos_sin(x_BTNH: Tensor, rows_BT1R: Tensor) -> Tensor:
    """Rotate pairs (x_p, x_p+H/2) by cosines and sines of the cache, in x's dtype."""
    cos_BT1H, sin_BT1H = rows_BT1R.to(x_BTNH.dtype).chunk(2, dim=-1)
    first, second = x_BTNH.chunk(2, dim=-1)
    return x_BTNH * cos_BT1H + torch.cat([-second, first], dim=-1) * sin_BT1H
