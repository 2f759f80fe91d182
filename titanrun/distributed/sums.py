"""Numbers of several ranks made one, where each of them goes on with its own part of a loss."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup


def largest(value: Tensor, group: ProcessGroup | None) -> Tensor:
    """Of each element the largest of the ranks; the value itself where there is no group."""
    if group is None:
        return value
    found = value.detach().clone()
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return found


def summed(value: Tensor, group: ProcessGroup | None) -> Tensor:
    """The sum over the ranks, which each of them uses in a loss of its own: its gradient is the sum of theirs."""
    if group is None:
        return value
    total: Tensor = SharedSum.apply(value, group)
    return total


class SharedSum(torch.autograd.Function):
    """A sum over ranks whose gradient is summed over them too."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        context: Any = ctx
        gradient = gradients[0].clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None
