"""RoPE against the same formulas in float64."""

import numpy as np
import pytest
import torch
from torch.profiler import profile

from titanrun.models.shared.rope import (
    apply_llama3_scaling,
    apply_rotary_emb_complex,
    apply_yarn_scaling,
    build_complex_rope_cache,
    build_cos_sin_rope_cache,
    multiply_as_real,
    select_rope_positions,
)
from titanrun.models.shared.rope_config import (
    Llama3RopeScalingConfig,
    RopeConfig,
    YarnRopeScalingConfig,
)

SCALING = Llama3RopeScalingConfig()


def frequencies_float64(theta, head_dim, scaling):
    frequencies = theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    if scaling is None:
        return frequencies
    original, low, high = (
        scaling.original_max_position_embeddings,
        scaling.low_freq_factor,
        scaling.high_freq_factor,
    )
    scaled = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < original / high:
            scaled.append(frequency)
        elif wavelength > original / low:
            scaled.append(frequency / scaling.factor)
        else:
            kept = (original / wavelength - low) / (high - low)
            scaled.append((1 - kept) * frequency / scaling.factor + kept * frequency)
    return np.array(scaled)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(
    "scaling",
    [None, SCALING, Llama3RopeScalingConfig(factor=32.0, original_max_position_embeddings=256)],
)
def test_the_table_equals_float64_within_the_rounding_of_its_angles(theta, scaling):
    table = build_complex_rope_cache(
        RopeConfig(theta=theta, scaling=scaling), head_dim=64, seq_len=16384
    )
    angles = np.outer(np.arange(16384), frequencies_float64(theta, 64, scaling))
    error = np.abs(table.numpy() - np.exp(1j * angles))
    # a dozen fp32 roundings of frequency and angle at most, and those of sine and cosine
    assert table.dtype == torch.complex64
    assert (error <= 12 * 2**-24 * angles + 3e-7).all()


def test_the_ramp_has_frequencies_in_all_three_bands():
    frequencies = torch.tensor(frequencies_float64(500000.0, 128, None), dtype=torch.float32)
    ratio = apply_llama3_scaling(SCALING, frequencies=frequencies, theta=500000.0) / frequencies
    assert (ratio == 1).any() and (ratio == 1 / 8).any() and ((ratio > 0.13) & (ratio < 0.99)).any()


def test_equal_band_edges_leave_no_ramp():
    scaling = Llama3RopeScalingConfig(
        low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=64
    )
    ratio = apply_llama3_scaling(
        scaling, frequencies=torch.tensor([1.0, 0.01]), theta=10000.0
    ) / torch.tensor([1.0, 0.01])
    assert ratio.tolist() == [1.0, 0.125]


YARN = YarnRopeScalingConfig(factor=40.0)


def yarn_float64(theta, head_dim, scaling):
    """As in the paper: a pair turns L f / 2 pi times in L tokens; below beta_slow it is slowed
    down, above beta_fast it is not. The ramp
    between is over pairs, from whole pair to whole pair, as in the authors' code (https://github.com/jquesnelle/yarn)."""
    frequencies = theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    first = np.flatnonzero(turns >= scaling.beta_fast).max(initial=0)
    last = np.flatnonzero(turns <= scaling.beta_slow).min(initial=head_dim - 1)
    slowed = np.clip((np.arange(head_dim // 2) - first) / (last - first), 0, 1)
    return slowed * frequencies / scaling.factor + (1 - slowed) * frequencies


@pytest.mark.parametrize(
    "scaling",
    [YARN, YarnRopeScalingConfig(factor=8.0, beta_fast=16.0, original_max_position_embeddings=512)],
)
def test_yarn_slows_pairs_down_by_how_often_they_turn(scaling):
    plain = torch.tensor(frequencies_float64(10000.0, 64, None), dtype=torch.float32)
    slowed = apply_yarn_scaling(scaling, frequencies=plain, theta=10000.0)
    np.testing.assert_allclose(slowed.double(), yarn_float64(10000.0, 64, scaling), rtol=1e-6)
    ratio = slowed / plain
    assert (
        (ratio == 1).any()
        and (ratio == 1 / scaling.factor).any()
        and ((ratio > 0.2) & (ratio < 0.9)).any()
    )


def test_yarn_makes_cosines_and_sines_grow():
    scaling = YarnRopeScalingConfig(factor=np.e**2, mscale=1.0, mscale_all_dim=0.5)
    assert scaling.cos_sin_scale() == pytest.approx(1.2 / 1.1)
    assert scaling.attention_score_scale() == pytest.approx(1.1**2)
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=scaling), head_dim=16, seq_len=4
    )
    assert table.abs().numpy() == pytest.approx(1.2 / 1.1)
    halves = build_cos_sin_rope_cache(10000.0, head_dim=16, seq_len=4, scaling=scaling)
    np.testing.assert_allclose(halves[:, :8], table.real, rtol=1e-6)
    np.testing.assert_allclose(halves[:, 16:24], table.imag, rtol=1e-6)


def test_yarn_with_a_factor_of_one_changes_nothing():
    scaling = YarnRopeScalingConfig(factor=1.0, mscale_all_dim=1.0)
    assert (scaling.cos_sin_scale(), scaling.attention_score_scale()) == (1.0, 1.0)
    plain = torch.tensor(frequencies_float64(10000.0, 64, None), dtype=torch.float32)
    torch.testing.assert_close(
        apply_yarn_scaling(scaling, frequencies=plain, theta=10000.0), plain, rtol=1e-6, atol=0
    )


def test_pairs_are_neighbours_and_turn_by_their_angle():
    table = build_complex_rope_cache(RopeConfig(theta=10000.0, scaling=None), head_dim=4, seq_len=8)
    x_BTNH = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(1, 8, 1, 4)
    turned = apply_rotary_emb_complex(x_BTNH, select_rope_positions(table, 8, None))[
        0, :, 0
    ].double()
    angles = torch.outer(
        torch.arange(8, dtype=torch.float64), torch.tensor([1.0, 0.01], dtype=torch.float64)
    )
    expected = torch.stack(
        [angles[:, 0].cos(), angles[:, 0].sin(), -angles[:, 1].sin(), angles[:, 1].cos()], dim=1
    )
    assert torch.allclose(turned, expected, rtol=0, atol=1e-6)


def test_scores_depend_on_distance_alone():
    table = build_complex_rope_cache(
        RopeConfig(theta=500000.0, scaling=SCALING), head_dim=32, seq_len=4096
    )
    q, k = torch.randn(2, 1, 1, 1, 32)
    near = (
        apply_rotary_emb_complex(q, table[7].view(1, 1, 1, -1))
        @ apply_rotary_emb_complex(k, table[4].view(1, 1, 1, -1)).mT
    )
    far = (
        apply_rotary_emb_complex(q, table[4007].view(1, 1, 1, -1))
        @ apply_rotary_emb_complex(k, table[4004].view(1, 1, 1, -1)).mT
    )
    assert torch.allclose(near, far, atol=1e-2)


def test_rotation_is_computed_in_fp32_and_returns_the_dtype_it_got():
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=None), head_dim=8, seq_len=16
    )
    x = torch.randn(2, 16, 3, 8).bfloat16()
    rows = select_rope_positions(table, 16, None)
    assert torch.equal(
        apply_rotary_emb_complex(x, rows), apply_rotary_emb_complex(x.float(), rows).bfloat16()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_real_products_are_those_of_complex_numbers_bit_for_bit(dtype):
    generator = torch.Generator().manual_seed(0)
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=None), head_dim=32, seq_len=64
    )
    rows = select_rope_positions(table, 64, None)
    x = torch.randn(2, 64, 3, 32, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(2, 64, 3, 32, generator=generator).to(dtype)
    # what compiled code computes
    pairs = x.float().unflatten(-1, (-1, 2))
    expected = multiply_as_real(pairs, rows).flatten(-2).type_as(x)
    found = apply_rotary_emb_complex(x, rows)
    assert torch.equal(found, expected)
    slopes = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (found, expected)]
    assert torch.equal(*slopes)


def test_one_product_rotates_all_pairs_where_nothing_is_compiled():
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=None), head_dim=8, seq_len=16
    )
    rows = select_rope_positions(table, 16, None)
    with profile() as seen:
        apply_rotary_emb_complex(torch.randn(2, 16, 3, 8), rows)
    names = [event.key for event in seen.key_averages() for _ in range(event.count)]
    assert [name for name in names if name in ("aten::mul", "aten::stack")] == ["aten::mul"]


@pytest.mark.parametrize(("width", "start"), [(8, 1), (9, 0)])
def test_slices_at_odd_places_are_rotated_too(width, start):
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=None), head_dim=8, seq_len=16
    )
    rows = select_rope_positions(table, 16, None)
    x = torch.randn(2 * 16 * 3 * width + start)[start:].view(2, 16, 3, width)[..., :8]
    expected = apply_rotary_emb_complex(x.contiguous().clone(), rows)
    torch.testing.assert_close(apply_rotary_emb_complex(x, rows), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_no_product_of_complex_numbers_is_left_to_the_compiler():
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=None), head_dim=8, seq_len=16
    )
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(apply_rotary_emb_complex, backend=look, fullgraph=True)
    compiled(torch.randn(2, 16, 3, 8), select_rope_positions(table, 16, None))
    calls = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    results = [node.meta["example_value"] for node in calls]
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    assert len(tensors) > 4 and not any(value.is_complex() for value in tensors)


def test_positions_pick_rows_for_all_or_for_each_row():
    table = build_complex_rope_cache(
        RopeConfig(theta=10000.0, scaling=None), head_dim=8, seq_len=16
    )
    counted = torch.arange(6)
    assert torch.equal(
        select_rope_positions(table, 6, None), select_rope_positions(table, 6, counted[None])
    )
    own = select_rope_positions(table, 6, torch.stack([counted, counted + 5]))
    assert own.shape == (2, 6, 1, 4)
    assert torch.equal(own[1, :, 0], table[5:11])


def test_the_table_does_not_follow_the_default_dtype():
    try:
        torch.set_default_dtype(torch.bfloat16)
        table = build_complex_rope_cache(
            RopeConfig(theta=500000.0, scaling=SCALING), head_dim=16, seq_len=300
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(
        table,
        build_complex_rope_cache(
            RopeConfig(theta=500000.0, scaling=SCALING), head_dim=16, seq_len=300
        ),
    )
