"""Random draws for initial weights: computed in fp32, then copied into the parameter's dtype.

A rank that holds a part of a parameter draws the whole and keeps its part, so that every layout begins with the same weights.
"""

import math

import torch
from torch import Generator, Tensor

from titanrun.distributed.seeds import WeightGenerator
from titanrun.distributed.shards import fill

# the next fp32 number to 1, whose inverse error function is infinite
LARGEST_BELOW_ONE = 1 - 2**-24


@torch.no_grad()
def normal_(weight: Tensor, *, std: float, generator: Generator | None = None) -> None:
    """Fill with draws from normal(0, std)."""
    fill(weight, space_for(weight, generator).normal_(0, std, generator=generator))


@torch.no_grad()
def truncated_normal_(
    weight: Tensor, *, std: float, bound: float, generator: Generator | None = None
) -> None:
    """Fill with draws from normal(0, std) restricted to [-bound, bound], by inversion of the distribution function.

    One uniform draw an element, so that neither the number of draws nor the result depends on the torch version. Bounds
    beyond 5.4 std leave it to fp32 to end the tails there; without the clamp, one draw in 2^24 would land on the bound.
    """
    reach = math.erf(bound / (std * math.sqrt(2)))
    draws = space_for(weight, generator).uniform_(-reach, reach, generator=generator)
    draws.clamp_(-LARGEST_BELOW_ONE, LARGEST_BELOW_ONE).erfinv_().mul_(std * math.sqrt(2)).clamp_(
        -bound, bound
    )
    fill(weight, draws)


def space_for(weight: Tensor, generator: Generator | None) -> Tensor:
    """Memory for the draws of all of a parameter, on the generator's device, which is put where that parameter's numbers begin."""
    if isinstance(generator, WeightGenerator):
        generator.restart_for(weight)
    return torch.empty(
        weight.shape,
        dtype=torch.float32,
        device=weight.device if generator is None else generator.device,
    )


@torch.no_grad()
def xavier_uniform_(weight: Tensor, *, generator: Generator | None = None) -> None:
    """Fill a matrix [out, in] with uniform draws of variance 2 / (in + out) (https://proceedings.mlr.press/v9/glorot10a.html)."""
    bound = math.sqrt(6 / sum(weight.shape))
    fill(weight, space_for(weight, generator).uniform_(-bound, bound, generator=generator))
