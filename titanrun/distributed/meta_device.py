"""Building a model without memory: on the meta device, where drawing initial weights would be work for nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from titanrun.distributed.packed import packed_parameters
from titanrun.distributed.shards import is_split


class WithoutDraws(TorchFunctionMode):
    """Within it the functions of torch.nn.init leave their tensor alone.

    The layers of torch.nn draw weights when they are made. On the meta device that fills nothing, but a normal draw there imports
    torch._dynamo, 1.2 s of CPU.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Within the block tensors have shapes and dtypes but no memory, and no weights are drawn."""
    with torch.device("meta"), WithoutDraws():
        yield


def allocate(
    model: nn.Module, device: torch.device, *, weights_on: torch.device | None = None
) -> None:
    """Gives every parameter and buffer of a meta model uninitialised memory; tied parameters are separated.

    Args:
        model: whole, or split over ranks, and then each rank allocates its part.
        device: where buffers are, and parameters.
        weights_on: where parameters are instead.
    """
    packed = list(packed_parameters(model))
    for module, name, _ in packed:
        # neither split nor moved: whoever splits the model leaves them out
        setattr(module, name, None)
    if any(is_split(parameter) for parameter in model.parameters()):
        # whoever split the model hears of its new parameters this way
        model.to_empty(device=weights_on or device)
    else:
        allocate_parameters(model, weights_on or device)
    for module, name, matrix in packed:
        module.register_parameter(name, matrix.on(device))  # type: ignore[arg-type]
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def allocate_parameters(model: nn.Module, device: torch.device) -> None:
    """What `to_empty` does, without its detour over Python kernels, which import sympy: 0.3 s of CPU."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
