"""Collectives for losses of which each rank computes its own part."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup


def all_reduce_max(value: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the element-wise maximum over the ranks, or the value itself without a group.

    Collective over `group`. The result has no gradient.
    """
    if group is None:
        return value
    found = value.detach().clone()
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return found


def all_reduce_sum(value: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum over the ranks, or the value itself without a group.

    Each rank uses the sum in its own loss, so its gradient is the sum of the gradients of all
    ranks. Collective over `group`, forward and backward.
    """
    if group is None:
        return value
    return AllReduceSumBackward.apply(value, group)


class AllReduceSumBackward(torch.autograd.Function):
    """Sum over ranks whose gradient is summed over them too."""

    if TYPE_CHECKING:

        @staticmethod
        def apply(value: Tensor, group: ProcessGroup) -> Tensor:
            """Return the sum over the ranks of `group`."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: ProcessGroup) -> Tensor:
        """All-reduce the value."""
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        """All-reduce the gradient."""
        context: Any = ctx
        gradient = gradients[0].clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None
