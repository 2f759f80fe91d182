"""Differences between the supported versions of torch, found by signature and never by number.

Nothing else in titanrun depends on torch's version.
"""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor


@cache
def accepts_keyword(function: Callable[..., Any], keyword: str) -> bool:
    """Return whether the function has a parameter of that name."""
    return keyword in signature(function).parameters


@cache
def adapt_varlen_kernel(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return `varlen_attn` with the parameter `enable_gqa`, which torch 2.11 does not have.

    Without it the kernel accepts any number of key heads that divides the number of query heads.
    The adapter can be deleted with torch 2.11.
    """
    if accepts_keyword(kernel, "enable_gqa"):
        return kernel

    @wraps(kernel)
    def call(*arguments: Any, enable_gqa: bool, **given: Any) -> Any:
        return kernel(*arguments, **given)

    return call


class WrapLocal(Protocol):
    """Function that returns a DTensor of this rank's part."""

    def __call__(
        self, part: Tensor, mesh: Any, placements: Sequence[Any], *, grad_placements: Sequence[Any]
    ) -> Any:
        """Return the DTensor, whose gradient has `grad_placements`."""


def select_from_local() -> WrapLocal:
    """Return `DTensor.from_local` with the parameter `grad_placements`.

    The result is collective over `mesh` in the backward pass if the incoming gradient has other
    placements. torch 2.11 has no `grad_placements`, and would reduce partial gradients early: they
    would be added up twice. The other branch can be deleted with torch 2.11.

    Compiled code may call the result, but not this function: it inspects a signature.
    """
    dtensor = import_module("torch.distributed.tensor").DTensor
    has_keyword = accepts_keyword(dtensor.from_local, "grad_placements")

    def wrap(
        part: Tensor, mesh: Any, placements: Sequence[Any], *, grad_placements: Sequence[Any]
    ) -> Any:
        if has_keyword:
            return dtensor.from_local(
                part, mesh, placements, run_check=False, grad_placements=grad_placements
            )
        return FromLocal.apply(part, mesh, placements, grad_placements)

    return wrap


class FromLocal(torch.autograd.Function):
    """`DTensor.from_local` with `grad_placements`."""

    if TYPE_CHECKING:

        @staticmethod
        def apply(
            part: Tensor, mesh: Any, placements: Sequence[Any], grad_placements: Sequence[Any]
        ) -> Any:
            """Return the DTensor."""

    @staticmethod
    def forward(
        ctx: Any, part: Tensor, mesh: Any, placements: Sequence[Any], grad_placements: Sequence[Any]
    ) -> Any:
        """Wrap the part without communication."""
        ctx.grad_placements = grad_placements
        dtensor = import_module("torch.distributed.tensor").DTensor
        return dtensor.from_local(part.detach(), mesh, placements, run_check=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return this rank's part of the gradient in the requested placements."""
        (gradient,) = gradients
        return gradient.redistribute(placements=ctx.grad_placements).to_local(), None, None, None
