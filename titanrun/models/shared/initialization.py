"""Random draws for initial weights: computed in fp32, then copied into the parameter's dtype."""

import math

import torch
from torch import Generator, Tensor

# the next fp32 number to 1, whose inverse error function is infinite
LARGEST_BELOW_ONE = 1 - 2**-24


@torch.no_grad()
def normal_(weight: Tensor, *, std: float, generator: Generator | None = None) -> None:
    """Fill with draws from normal(0, std)."""
    weight.copy_(torch.empty_like(weight, dtype=torch.float32).normal_(0, std, generator=generator))


@torch.no_grad()
def truncated_normal_(weight: Tensor, *, std: float, bound: float, generator: Generator | None = None) -> None:
    """Fill with draws from normal(0, std) restricted to [-bound, bound], by inversion of the distribution function.

    One uniform draw an element, so that neither the number of draws nor the result depends on the torch version. Bounds
    beyond 5.4 std leave it to fp32 to end the tails there; without the clamp, one draw in 2^24 would land on the bound.
    """
    reach = math.erf(bound / (std * math.sqrt(2)))
    draws = torch.empty_like(weight, dtype=torch.float32).uniform_(-reach, reach, generator=generator)
    draws.clamp_(-LARGEST_BELOW_ONE, LARGEST_BELOW_ONE).erfinv_().mul_(std * math.sqrt(2)).clamp_(-bound, bound)
    weight.copy_(draws)
