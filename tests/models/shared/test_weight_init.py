"""Random draws for weights: moments, bounds, reproducibility."""

import math

import pytest
import torch
from torch import Generator

from titanrun.models.shared.weight_init import normal_, truncated_normal_


def truncated_std(stds):
    """Std of a standard normal restricted to +-stds."""
    density = math.exp(-(stds**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * stds * density / math.erf(stds / math.sqrt(2)))


@pytest.mark.parametrize("stds", [0.5, 1.0, 2.0, 3.0, 100.0])
def test_a_truncated_normal_has_its_bounds_and_moments(stds):
    weight = torch.empty(1000, 1000)
    truncated_normal_(weight, std=0.02, bound=0.02 * stds, generator=Generator().manual_seed(1))
    assert weight.abs().max() <= 0.02 * stds
    assert abs(weight.mean().item()) < 0.02 * 5 / 1000
    assert weight.std().item() == pytest.approx(0.02 * truncated_std(stds), rel=5e-3)


def test_no_draw_lands_on_a_bound_that_is_far_away():
    weight = torch.empty(2**25)
    truncated_normal_(weight, std=0.02, bound=2.0, generator=Generator().manual_seed(1))
    assert weight.abs().max() < 0.02 * 6


def test_draws_come_from_the_generator_given():
    def draw(seed):
        weight = torch.empty(64)
        truncated_normal_(weight, std=1.0, bound=2.0, generator=Generator().manual_seed(seed))
        return weight

    state = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "fill",
    [
        lambda w, g: normal_(w, std=1.0, generator=g),
        lambda w, g: truncated_normal_(w, std=1.0, bound=2.0, generator=g),
    ],
)
def test_draws_are_made_in_fp32_and_then_rounded(fill):
    half, full = torch.empty(64, dtype=torch.bfloat16), torch.empty(64)
    fill(half, Generator().manual_seed(1))
    fill(full, Generator().manual_seed(1))
    assert torch.equal(half, full.bfloat16())
