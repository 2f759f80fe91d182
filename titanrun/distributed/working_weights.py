"""Weights in the compute dtype on a rank that holds whole fp32 weights.

FSDP gathers weights in the compute dtype and sums gradients in fp32. A rank without data
parallelism does the same with copies of its weights, so that the number of ranks does not change
the numerics.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from titanrun.distributed.dtensor import to_local
from titanrun.distributed.model_parts import build_parameter_groups, get_model_parts, keeps_dtype
from titanrun.distributed.precision import Precision
from titanrun.distributed.quantized_weights import QuantizedWeight


@dataclass(frozen=True, slots=True)
class WorkingWeight:
    """Copy of a parameter, and where modules hold that parameter.

    Args:
        master: the fp32 parameter: the optimizer's, with the gradient sums.
        copy: the parameter to compute with. It never holds a gradient between passes.
        places: modules that hold the parameter, with its name there. Several if it is tied.
    """

    master: nn.Parameter
    copy: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]


class WorkingWeights:
    """Copies of a model's fp32 parameters in the compute dtype.

    Names, checkpoints and the optimizer see only the fp32 parameters. Within `swap_in` the modules
    hold the copies. It must enclose the backward pass too, which may recompute layers.

    Modules that keep their dtype, quantized matrices, and parameters in other dtypes have no
    copies. Floating-point inputs are cast as FSDP casts them.

    Args:
        model: a model with allocated weights.
        precision: no copies are made if it computes in the storage dtype.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.compute_dtype = precision.compute_dtype
        self._depth = 0
        self._versions: list[int] = []
        self._weights: list[WorkingWeight] = []
        if precision.computes_as_stored:
            return
        self._weights = [
            WorkingWeight(master, self._create_copy(master), tuple(places))
            for master, places in find_parameter_places(model)
        ]
        for weight in self._weights:
            if weight.copy.requires_grad:
                weight.copy.register_post_accumulate_grad_hook(
                    partial(move_gradient_to_master, weight.master)
                )
        for module in iter_modules_with_cast_inputs(model):
            module.register_forward_pre_hook(self._cast_inputs, with_kwargs=True)
        model.register_state_dict_pre_hook(self._check_not_swapped_in)

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Make the modules hold the copies within the block. Blocks may be nested."""
        if self._depth == 0:
            self._maybe_refresh()
            self._put("copy")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._put("master")
                # split backward passes of a pipeline set gradients without calling hooks
                for weight in self._weights:
                    move_gradient_to_master(weight.master, weight.copy)

    def mark_stale(self) -> None:
        """Refresh the copies before the next pass, however the weights were changed."""
        self._versions = []

    def to(self, device: torch.device) -> None:
        """Move the copies to a device, beside a model that was moved outside of `swap_in`."""
        self._check_not_swapped_in()
        for weight in self._weights:
            weight.copy.data = weight.copy.data.to(device)

    @property
    def num_bytes(self) -> int:
        """Memory of this rank's copies."""
        return sum(to_local(weight.copy).nbytes for weight in self._weights)

    def _create_copy(self, master: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(
            master.detach().to(self.compute_dtype), requires_grad=master.requires_grad
        )

    @torch.no_grad()
    def _maybe_refresh(self) -> None:
        """Copy the weights if any of them was written to since the last call."""
        masters = [to_local(weight.master.detach()) for weight in self._weights]
        versions = [master._version for master in masters]
        if versions != self._versions:
            copies = [to_local(weight.copy.detach()) for weight in self._weights]
            torch._foreach_copy_(copies, masters)
            self._versions = versions

    def _put(self, which: str) -> None:
        for weight in self._weights:
            for module, name in weight.places:
                module._parameters[name] = getattr(weight, which)

    def _cast_inputs(
        self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._depth == 0:
            return None
        cast = partial(cast_floating_point, dtype=self.compute_dtype)
        return tree_map(cast, arguments), tree_map(cast, named)

    def _check_not_swapped_in(self, *_: Any) -> None:
        assert self._depth == 0, "the state of a model is not that of its working copies"


def find_parameter_places(
    model: nn.Module,
) -> Iterable[tuple[nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Return each fp32 parameter that needs a copy, with the modules that hold it."""
    kept = {
        id(parameter)
        for group in build_parameter_groups(*get_model_parts(model))
        if any(map(keeps_dtype, group))
        for module in group
        for parameter in module.parameters()
    }
    found: dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if (
                parameter is not None
                and parameter.dtype == torch.float32
                and id(parameter) not in kept
                and not isinstance(parameter, QuantizedWeight)
            ):
                found.setdefault(id(parameter), (parameter, []))[1].append((module, name))
    return found.values()


@torch.no_grad()
def cast_frozen_weights(model: nn.Module, precision: Precision) -> None:
    """Store fp32 parameters that are not trained in the compute dtype, in which passes use them.

    They need no copies then. Modules that keep their dtype keep it, and so do weights that FSDP
    gathers in float8, because torchao rounds those in fp32 once.
    """
    if precision.computes_as_stored:
        return
    for parameter, _ in find_parameter_places(model):
        if not parameter.requires_grad and is_plain_parameter(parameter):
            parameter.data = parameter.data.to(precision.compute_dtype)


@torch.no_grad()
def cast_untrained_model(model: nn.Module, precision: Precision) -> None:
    """Store the fp32 parameters of a model that no optimizer updates in the compute dtype.

    The exceptions of `cast_frozen_weights` apply. If FSDP gathers any weights in float8, all keep
    their dtype, because those of one group must have the same.
    """
    if precision.computes_as_stored:
        return
    parameters = [held for held, _ in find_parameter_places(model)]
    if all(map(is_plain_parameter, parameters)):
        for parameter in parameters:
            parameter.data = parameter.data.to(precision.compute_dtype)


def is_plain_parameter(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a tensor of torch's own, not torchao's wrapper of one."""
    return type(parameter) is nn.Parameter


def iter_modules_with_cast_inputs(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules whose inputs may have another dtype than their weights.

    These are the model, and its parts if one of them keeps its dtype.
    """
    yield model
    groups = build_parameter_groups(*get_model_parts(model))
    if any(keeps_dtype(module) for group in groups for module in group):
        for group in groups:
            if not any(map(keeps_dtype, group)):
                yield from group


def cast_floating_point(value: Any, *, dtype: torch.dtype) -> Any:
    """Cast a floating-point tensor. Return everything else as it is."""
    is_castable = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_castable else value


@torch.no_grad()
def move_gradient_to_master(master: nn.Parameter, copy: Tensor) -> None:
    """Add the gradient of a copy, if it has one, to that of the fp32 parameter."""
    gradient, copy.grad = copy.grad, None
    if gradient is None:
        return
    if master.grad is None:
        master.grad = gradient.to(master.dtype)
    else:
        master.grad.add_(gradient)
    # as autograd calls them for its own sums
    hooks: dict[int, Any] | None = getattr(master, "_post_accumulate_grad_hooks", None)
    for hook in list((hooks or {}).values()):
        hook(master)
