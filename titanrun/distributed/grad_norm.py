"""Global L2 norm of all gradients, and clipping to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.dtensor import full_tensor, get_shard_groups, is_sharded, to_local

# torch adds this to the norm before it divides by it
EPSILON = 1e-6
# gradients with fewer elements have a rounding error below 2e-6 of their own norm, which does not
# show in the total
GATHER_MIN_ELEMENTS = 2**18


@dataclass(frozen=True, slots=True)
class ShardNorm:
    """L2 norm of this rank's part of one gradient, in fp32.

    `groups` are the groups of ranks that hold other parts of the gradient.
    """

    norm: Tensor
    groups: list[ProcessGroup]


def compute_grad_norm(
    grads: Sequence[Tensor],
    *,
    device: torch.device | None = None,
    pp_group: ProcessGroup | None = None,
) -> Tensor:
    """Compute the L2 norm over all gradients of all ranks as one fp32 number.

    Gradients in bf16 are summed in fp32: torch's own total norm would round it to three digits.
    Collective over all ranks that hold gradients: all of them must call this.

    Args:
        grads: gradients of this rank. Only the local part of a sharded one is read, and summed with
            the parts of other ranks.
        device: device on which ranks communicate. None: the device of the gradients.
        pp_group: the ranks that hold the other layers.
    """
    return compute_total_norm(
        compute_shard_norms(grads, device=device), device=device, pp_group=pp_group
    )


def compute_shard_norms(
    grads: Sequence[Tensor], *, device: torch.device | None = None
) -> list[ShardNorm]:
    """Compute the norm of the local part of each gradient.

    On a CPU, large sharded gradients are all-gathered first.
    """
    wholes = [
        full_tensor(gradient) if needs_full_gradient(gradient, device) else gradient
        for gradient in grads
    ]
    if not wholes:
        return []
    norms = torch._foreach_norm([to_local(whole) for whole in wholes], 2.0, dtype=torch.float32)
    return [
        ShardNorm(norm, get_shard_groups(whole)) for norm, whole in zip(norms, wholes, strict=True)
    ]


def compute_total_norm(
    shard_norms: Sequence[ShardNorm],
    *,
    device: torch.device | None = None,
    pp_group: ProcessGroup | None = None,
) -> Tensor:
    """Compute the norm of all gradients of all ranks from this rank's shard norms.

    Collective over the groups of the shard norms and over `pp_group`.
    """
    norms: dict[tuple[str, ...], list[Tensor]] = {}
    groups: dict[tuple[str, ...], list[ProcessGroup]] = {}
    for part in shard_norms:
        names = tuple(group.group_name for group in part.groups)
        groups[names] = part.groups
        norms.setdefault(names, []).append(part.norm)
    if pp_group is None and list(norms) == [()]:
        return combine_norms(norms[()])
    squares = [
        all_reduce_sum_over_groups_(combine_norms(found).square().to(device), groups[names])
        for names, found in norms.items()
    ]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    return all_reduce_sum_over_groups_(total, [] if pp_group is None else [pp_group]).sqrt()


def needs_full_gradient(gradient: Tensor, device: torch.device | None) -> bool:
    """Return whether the norm of a sharded gradient needs the whole gradient.

    On a CPU torch adds the squares of a matrix one after the other in fp32: the norm of a large one
    is wrong in its fifth digit, and the error depends on how it is sharded. A single process
    reports what torch computes, as recorded runs do, and several processes must report the same.
    """
    return (
        device is not None
        and not is_accelerator(device)
        and is_sharded(gradient)
        and gradient.numel() >= GATHER_MIN_ELEMENTS
    )


def combine_norms(norms: Sequence[Tensor]) -> Tensor:
    """Compute the norm of several tensors from the norm of each."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return norm


def all_reduce_sum_over_groups_(value: Tensor, groups: Sequence[ProcessGroup]) -> Tensor:
    """All-reduce `value` over one group after the other, in place."""
    for group in groups:
        dist.all_reduce(value, group=group)
    return value


def clip_grads_with_norm_(
    parameters: Sequence[Tensor], *, total_norm: Tensor, max_norm: float
) -> None:
    """Scale the gradients by min(1, max_norm / (norm + 1e-6)) without waiting for the device."""
    parts = [to_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    scale = torch.clamp(max_norm / (total_norm + EPSILON), max=1.0)
    if parts:
        torch._foreach_mul_(parts, scale.to(parts[0].device))
