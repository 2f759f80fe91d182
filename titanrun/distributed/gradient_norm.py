"""The L2 norm of all gradients, wherever their parts are, and clipping to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.shards import gathered, is_split, own_part, split_over

# what torch adds to the norm before it divides by it
EPSILON = 1e-6
# elements of a gradient from which the rounding of its norm shows beside all others': below 2e-6 of its own norm for smaller ones
COARSE_FROM = 2**18


@dataclass(frozen=True, slots=True)
class PartNorm:
    """The L2 norm of what this rank holds of one gradient, in fp32, and the groups of ranks that hold other parts of it."""

    norm: Tensor
    groups: list[ProcessGroup]


def gradient_norm(
    gradients: Sequence[Tensor],
    *,
    device: torch.device | None = None,
    pipeline: ProcessGroup | None = None,
) -> Tensor:
    """L2 norm over all gradients of all ranks as one fp32 number.

    Gradients in bf16 are summed in fp32: torch's own total norm would round it to three digits.

    Args:
        gradients: this rank's; of a split one its part is read, and added up with the other ranks' parts.
        device: where ranks communicate; None is where the gradients are.
        pipeline: the ranks that hold the other layers.
    """
    return total_norm(part_norms(gradients, device=device), device=device, pipeline=pipeline)


def part_norms(
    gradients: Sequence[Tensor], *, device: torch.device | None = None
) -> list[PartNorm]:
    """The norm of each gradient's part, without those of other ranks."""
    wholes = [
        gathered(gradient) if is_summed_coarsely(gradient, device) else gradient
        for gradient in gradients
    ]
    if not wholes:
        return []
    norms = torch._foreach_norm([own_part(whole) for whole in wholes], 2.0, dtype=torch.float32)
    return [PartNorm(norm, split_over(whole)) for norm, whole in zip(norms, wholes, strict=True)]


def total_norm(
    parts: Sequence[PartNorm],
    *,
    device: torch.device | None = None,
    pipeline: ProcessGroup | None = None,
) -> Tensor:
    """The norm of all gradients of all ranks, of whose parts these are this rank's."""
    norms: dict[tuple[str, ...], list[Tensor]] = {}
    groups: dict[tuple[str, ...], list[ProcessGroup]] = {}
    for part in parts:
        names = tuple(group.group_name for group in part.groups)
        groups[names] = part.groups
        norms.setdefault(names, []).append(part.norm)
    if pipeline is None and list(norms) == [()]:
        return together(norms[()])
    squares = [
        summed(together(found).square().to(device), groups[names]) for names, found in norms.items()
    ]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    return summed(total, [] if pipeline is None else [pipeline]).sqrt()


def is_summed_coarsely(gradient: Tensor, device: torch.device | None) -> bool:
    """Whether the norm of a split gradient is taken of the whole.

    On a CPU torch adds the squares of a matrix up one after the other in fp32: the norm of a large one is off in its fifth digit, and
    otherwise for each way to split it. One process prints what torch computes, as recorded runs do; several must print the same.
    """
    return (
        device is not None
        and not is_accelerator(device)
        and is_split(gradient)
        and gradient.numel() >= COARSE_FROM
    )


def together(norms: Sequence[Tensor]) -> Tensor:
    """The norm of several tensors from the norm of each."""
    return torch.linalg.vector_norm(torch.stack(list(norms)))


def summed(value: Tensor, groups: Sequence[ProcessGroup]) -> Tensor:
    """`value` added up over the ranks of one group after the other, in place."""
    for group in groups:
        dist.all_reduce(value, group=group)
    return value


def clip_gradients(parameters: Sequence[Tensor], *, norm: Tensor, max_norm: float) -> None:
    """Scales the gradients by min(1, max_norm / (norm + 1e-6)), without waiting for the device."""
    parts = [own_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
    scale = torch.clamp(max_norm / (norm + EPSILON), max=1.0)
    if parts:
        torch._foreach_mul_(parts, scale.to(parts[0].device))
