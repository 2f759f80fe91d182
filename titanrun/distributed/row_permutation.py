"""Reordered rows of a matrix, whose gradients are gathered too.

The gradient of an index is a sum into zeros, with atomic additions on a GPU: slow, and in another
order each time. That of a permutation is the inverse permutation.

Shapes: N rows, D their width, K copies of a row, S = N * K slots.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class PermuteRows(torch.autograd.Function):
    """Copies of rows in another order. Gradients of a row's copies are added in their order."""

    if TYPE_CHECKING:

        @staticmethod
        def apply(x_ND: Tensor, order_S: Tensor, inverse_S: Tensor, copies: int) -> Tensor:
            """Return the slots [S, D]."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order_S: Tensor, inverse_S: Tensor, copies: int) -> Tensor:
        """Gather the row of each slot."""
        ctx.save_for_backward(inverse_S)
        ctx.copies = copies
        return x_ND[order_S // copies if copies > 1 else order_S]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Gather the gradients of each row's copies and add them."""
        (inverse_S,) = ctx.saved_tensors
        gradient_SD = gradients[0][inverse_S]
        if ctx.copies > 1:
            gradient_SD = gradient_SD.unflatten(0, (-1, ctx.copies)).sum(1)
        return gradient_SD, None, None, None


def permute_rows(x_ND: Tensor, order_S: Tensor, inverse_S: Tensor, *, copies: int = 1) -> Tensor:
    """Return slots [S, D]: slot s is the row `order_S[s] // copies` of `x_ND`.

    Args:
        x_ND: the rows.
        order_S: permutation of the copies of all rows, row by row.
        inverse_S: its inverse.
        copies: copies of each row.
    """
    return PermuteRows.apply(x_ND, order_S, inverse_S, copies)


def invert_permutation(order_S: Tensor) -> Tensor:
    """Return the inverse of a permutation, without sorting."""
    return torch.empty_like(order_S).scatter_(
        0, order_S, torch.arange(order_S.numel(), device=order_S.device)
    )
