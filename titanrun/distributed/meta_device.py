"""Model construction on the meta device: no memory and no draws of initial weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from titanrun.distributed.dtensor import is_sharded
from titanrun.distributed.quantized_weights import iter_quantized_parameters


class SkipInit(TorchFunctionMode):
    """Mode in which the functions of torch.nn.init return their tensor unchanged.

    The layers of torch.nn draw weights when they are created. On the meta device that fills
    nothing, but a normal draw there imports torch._dynamo, 1.2 s of CPU.
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
def init_on_meta_device() -> Iterator[None]:
    """Create tensors without memory and without drawing weights within the block."""
    with torch.device("meta"), SkipInit():
        yield


def allocate_model(
    model: nn.Module, device: torch.device, *, parameter_device: torch.device | None = None
) -> None:
    """Allocate uninitialized memory for all parameters and buffers of a meta model.

    Tied parameters are separated.

    Args:
        model: the whole model, or a sharded one, of which each rank allocates its part.
        device: device of buffers and parameters.
        parameter_device: device of parameters if it differs.
    """
    quantized = list(iter_quantized_parameters(model))
    for module, name, _ in quantized:
        # neither sharded nor moved: FSDP ignores them
        setattr(module, name, None)
    if any(is_sharded(parameter) for parameter in model.parameters()):
        # FSDP is notified of the new parameters this way
        model.to_empty(device=parameter_device or device)
    else:
        allocate_parameters(model, parameter_device or device)
    for module, name, matrix in quantized:
        module.register_parameter(name, matrix.empty_on_device(device))  # type: ignore[arg-type]
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def allocate_parameters(model: nn.Module, device: torch.device) -> None:
    """Allocate the parameters like `to_empty`, but without its Python kernels.

    Those import sympy, 0.3 s of CPU.
    """
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
