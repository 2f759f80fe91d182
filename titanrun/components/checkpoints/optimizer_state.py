"""An optimizer's state as tensors by parameter name, so that a checkpoint depends on no order of parameters and no layout."""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.components.checkpoints.layout import differences, layouts
from titanrun.config.problems import fail

PREFIX = "optimizer."


def flatten(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's own state tensors (no copies), each under `optimizer.<parameter>.<state>`.

    The state of a parameter that was never updated is made first, so that the names do not depend on how far the run is. Neither
    the weights nor what the optimizer does next change by that.
    """
    names: dict[Tensor, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(tensor, name)
    tensors: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            if not optimizer.state.get(parameter):
                optimizer.state[parameter] = initial_state(optimizer, group, parameter)
            for key, value in optimizer.state[parameter].items():
                if value is not None:
                    assert isinstance(value, Tensor), (
                        f"{type(optimizer).__name__} keeps {key}, which is no tensor"
                    )
                    tensors[f"{PREFIX}{names[parameter]}.{key}"] = value
    return tensors


def restore(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Copy what `flatten` gave, perhaps among other tensors, into the optimizer's state, bit by bit.

    Raises a problem `checkpoint` where names, shapes or types are not exactly those of this optimizer.
    """
    own = flatten(model, optimizer)
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    found = differences(layouts(given), layouts(own))
    if found:
        raise fail(
            "checkpoint", f"the saved optimizer state does not fit this run: {'; '.join(found)}"
        )
    for name, tensor in own.items():
        tensor.copy_(given[name])


@torch.no_grad()
def initial_state(
    optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, Any]:
    """The state of a parameter before its first update.

    The optimizer says it, or makes it by one step on a copy of the parameter with a gradient of zero: running means stay zero,
    and only the count of steps must be set back.
    """
    if hasattr(optimizer, "initial_state"):
        own: dict[str, Any] = optimizer.initial_state(parameter)
        return own
    stand_in = parameter.detach().clone().requires_grad_()
    stand_in.grad = torch.zeros_like(stand_in)
    shadow = copy.copy(optimizer)
    shadow.param_groups = [{**group, "params": [stand_in]}]
    shadow.state = defaultdict(dict)
    shadow.step()
    state = dict(shadow.state[stand_in])
    if isinstance(state.get("step"), Tensor):
        state["step"].zero_()
    return state
