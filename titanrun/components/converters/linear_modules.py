"""Which linear modules of a model a converter takes, and why it leaves the others."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

Doubt = Callable[[str, nn.Linear], str | None]
"""Why a converter leaves a linear module; None: it takes it."""


def linear_modules(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Every linear module with its name, those too that a converter has rewritten already."""
    return (
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)
    )


def sorted_out(model: nn.Module, *doubts: Doubt) -> tuple[list[str], dict[str, str]]:
    """The names of the modules that no doubt keeps back, and the others with the first reason against each."""
    taken, left = [], {}
    for name, module in linear_modules(model):
        found = (doubt(name, module) for doubt in (is_rewritten, *doubts))
        reason = next((reason for reason in found if reason is not None), None)
        if reason is None:
            taken.append(name)
        else:
            left[name] = reason
    return taken, left


def is_rewritten(_: str, module: nn.Linear) -> str | None:
    """One module has one converter: the first that takes it."""
    return None if type(module) is nn.Linear else f"it is a {type(module).__name__} already"


def named_in(texts: Iterable[str]) -> Doubt:
    """Leaves the modules whose names have one of the texts in them."""

    def doubt(name: str, _: nn.Linear) -> str | None:
        found = next((text for text in texts if text in name), None)
        return None if found is None else f"'{found}' is in its name"

    return doubt


def named_in_none_of(texts: Iterable[str]) -> Doubt:
    """Leaves the modules whose names have none of the texts in them, if there are texts."""
    wanted = tuple(texts)

    def doubt(name: str, _: nn.Linear) -> str | None:
        return (
            None if not wanted or any(text in name for text in wanted) else "fqns does not name it"
        )

    return doubt


def not_in_blocks_of(size: int) -> Doubt:
    """Leaves the modules with a width that is no multiple of `size`, which the kernels have no products for."""

    def doubt(_: str, module: nn.Linear) -> str | None:
        rows, columns = module.weight.shape
        return (
            None
            if rows % size == 0 and columns % size == 0
            else f"{rows} x {columns} is not in blocks of {size}"
        )

    return doubt


def in_compute_dtype(
    module: nn.Module, arguments: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """A hook that gives a module its input in the dtype of autocast: a product that is written out itself knows nothing of it."""
    first, *others = arguments
    kind = first.device.type
    if not torch.is_autocast_enabled(kind):
        return arguments
    return first.to(torch.get_autocast_dtype(kind)), *others
