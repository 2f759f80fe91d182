"""The L2 norm of all gradients, wherever their parts are, and clipping to it."""

from collections.abc import Sequence

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


def gradient_norm(gradients: Sequence[Tensor], *, device: torch.device | None = None, pipeline: ProcessGroup | None = None) -> Tensor:
    """L2 norm over all gradients of all ranks as one fp32 number.

    Gradients in bf16 are summed in fp32: torch's own total norm would round it to three digits.

    Args:
        gradients: this rank's; of a split one its part is read, and added up with the other ranks' parts.
        device: where ranks communicate; None is where the gradients are.
        pipeline: the ranks that hold the other layers.
    """
    parts: dict[tuple[str, ...], list[Tensor]] = {}
    groups: dict[tuple[str, ...], list[ProcessGroup]] = {}
    for gradient in gradients:
        whole = gathered(gradient) if is_summed_coarsely(gradient, device) else gradient
        split = split_over(whole)
        names = tuple(group.group_name for group in split)
        groups[names] = split
        parts.setdefault(names, []).append(own_part(whole))
    if pipeline is None and list(parts) == [()]:
        return norm_of(parts[()])
    squares = [summed(norm_of(tensors).square().to(device), groups[names]) for names, tensors in parts.items()]
    return summed(torch.stack(squares).sum(), [] if pipeline is None else [pipeline]).sqrt()


def is_summed_coarsely(gradient: Tensor, device: torch.device | None) -> bool:
    """Whether the norm of a split gradient is taken of the whole.

    On a CPU torch adds the squares of a matrix up one after the other in fp32: the norm of a large one is off in its fifth digit, and
    otherwise for each way to split it. One process prints what torch computes, as recorded runs do; several must print the same.
    """
    return device is not None and not is_accelerator(device) and is_split(gradient) and gradient.numel() >= COARSE_FROM


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm over tensors of this rank, in fp32."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors), 2.0, dtype=torch.float32)))


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
