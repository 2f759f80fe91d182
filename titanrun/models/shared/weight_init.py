"""Random draws of initial weights, computed in fp32 and copied into the parameter's dtype.

A rank that holds a part of a parameter draws the whole and keeps its part, so that every layout
starts with the same weights.
"""

import math

import torch
from torch import Generator, Tensor

from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.dtensor import copy_full_into_

# largest fp32 number below 1, whose inverse error function is infinite
LARGEST_BELOW_ONE = 1 - 2**-24


@torch.no_grad()
def normal_(weight: Tensor, *, std: float, generator: Generator | None = None) -> None:
    """Fill a weight with draws from normal(0, std)."""
    copy_full_into_(weight, allocate_draws(weight, generator).normal_(0, std, generator=generator))


@torch.no_grad()
def truncated_normal_(
    weight: Tensor, *, std: float, bound: float, generator: Generator | None = None
) -> None:
    """Fill a weight with draws from normal(0, std) restricted to [-bound, bound].

    The draws invert the distribution function. There is one uniform draw per element, so that
    neither the number of draws nor the result depends on the torch version. For bounds beyond 5.4
    std the precision of fp32 ends the tails. Without the clamp, one draw in 2^24 would be at the
    bound.
    """
    reach = math.erf(bound / (std * math.sqrt(2)))
    draws = allocate_draws(weight, generator).uniform_(-reach, reach, generator=generator)
    draws.clamp_(-LARGEST_BELOW_ONE, LARGEST_BELOW_ONE).erfinv_().mul_(std * math.sqrt(2)).clamp_(
        -bound, bound
    )
    copy_full_into_(weight, draws)


def allocate_draws(weight: Tensor, generator: Generator | None) -> Tensor:
    """Allocate memory for the draws of a whole parameter on the generator's device.

    A `WeightInitRng` is seeded for that parameter.
    """
    if isinstance(generator, WeightInitRng):
        generator.seed_for_parameter(weight)
    return torch.empty(
        weight.shape,
        dtype=torch.float32,
        device=weight.device if generator is None else generator.device,
    )


@torch.no_grad()
def xavier_uniform_(weight: Tensor, *, generator: Generator | None = None) -> None:
    """Fill a matrix [out, in] with uniform draws of variance 2 / (in + out).

    Described in https://proceedings.mlr.press/v9/glorot10a.html.
    """
    bound = math.sqrt(6 / sum(weight.shape))
    copy_full_into_(
        weight, allocate_draws(weight, generator).uniform_(-bound, bound, generator=generator)
    )
