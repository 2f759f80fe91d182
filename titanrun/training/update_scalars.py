"""Scalars on the device that kernels of optimizers read: a divisor of gradients, and a veto.

torch's fused Adam and AdamW read them, and titanrun's kernels of AdamW with small states.

The kernel divides each gradient by `grad_scale` as it reads it, which saves a pass over all
gradients for clipping. It writes nothing if `found_inf` is 1, so that the host need not wait for
the decision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from titanrun.components.optimizers.adamw import EagerAdam, EagerAdamW
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.grad_norm import EPSILON

FUSED_OPTIMIZERS = (Adam, AdamW, EagerAdam, EagerAdamW)


@dataclass(frozen=True, slots=True)
class DeferredUpdate:
    """Decision on an update that the host does not know yet.

    Args:
        found_inf: fp32 scalar on the device: 1 if nothing may be updated, else 0.
    """

    found_inf: Tensor


def accepts_update_scalars(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether the optimizer's kernel reads the scalars.

    On a CPU it would too, but gradients are scaled beforehand there, as in recorded runs. Weights
    that are offloaded to host memory are updated there: torch would copy the scalars to it, and not
    wait for their arrival.
    """
    is_there = all(
        weight.device.type == device.type
        for group in optimizer.param_groups
        for weight in group["params"]
    )
    return is_accelerator(device) and is_there and reads_update_scalars(optimizer)


def reads_update_scalars(optimizer: Optimizer) -> bool:
    """Return whether this is a fused Adam or AdamW, or one with own kernels.

    A scalar beside sharded weights is the same on all ranks.
    """
    if isinstance(optimizer, KernelAdamW):
        return optimizer.kernels is not None
    # not isinstance(): Muon is an AdamW whose matrices have another update
    return type(optimizer) in FUSED_OPTIMIZERS and all(
        group.get("fused") for group in optimizer.param_groups
    )


@contextmanager
def set_update_scalars(
    optimizer: Optimizer, *, grad_scale: Tensor | None, found_inf: Tensor | None
) -> Iterator[None]:
    """Hand the scalars to the optimizer's steps within the block. None: do not set one."""
    given = {"grad_scale": grad_scale, "found_inf": found_inf}
    named = {name: value for name, value in given.items() if value is not None}
    for name, value in named.items():
        setattr(optimizer, name, value)
    try:
        yield
    finally:
        for name in named:
            delattr(optimizer, name)


def compute_grad_divisor(norm: Tensor, max_norm: float) -> Tensor:
    """Return what gradients of that norm are divided by to clip them: 1 or more."""
    return torch.clamp((norm.float() + EPSILON) / max_norm, min=1.0)
