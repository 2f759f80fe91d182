"""Optimizer state as tensors by parameter name.

So a checkpoint does not depend on the order of parameters or on the layout of ranks.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.components.checkpoints.tensor_metadata import (
    find_tensor_mismatches,
    get_tensor_metadata,
)
from titanrun.config.problems import problem_error

OPTIMIZER_PREFIX = "optimizer."


def flatten_optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state tensors (no copies) as `optimizer.<parameter>.<state>`.

    The state of a parameter without updates is initialized first, so that the names do not depend
    on the progress of the run. This changes neither the weights nor the next update.
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
                optimizer.state[parameter] = build_initial_state(optimizer, group, parameter)
            for key, value in optimizer.state[parameter].items():
                if value is not None:
                    assert isinstance(value, Tensor), (
                        f"{type(optimizer).__name__} keeps {key}, which is not a tensor"
                    )
                    tensors[f"{OPTIMIZER_PREFIX}{names[parameter]}.{key}"] = value
    return tensors


def load_optimizer_state(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Copy saved state tensors (and ignore other tensors) into the optimizer, bit by bit.

    Raises:
        ProblemsFound: A problem `checkpoint` if names, shapes or dtypes are not exactly those of
            this optimizer.
    """
    own = flatten_optimizer_state(model, optimizer)
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(OPTIMIZER_PREFIX)}
    found = find_tensor_mismatches(get_tensor_metadata(given), get_tensor_metadata(own))
    if found:
        raise problem_error(
            "checkpoint", f"the saved optimizer state does not fit this run: {'; '.join(found)}"
        )
    for name, tensor in own.items():
        tensor.copy_(given[name])


@torch.no_grad()
def build_initial_state(
    optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, Any]:
    """Return the state of a parameter before its first update.

    The optimizer provides it, or it results from one step on a copy of the parameter with a
    gradient of zero: running means stay zero, and only the step count must be reset.
    """
    if hasattr(optimizer, "build_initial_state"):
        own: dict[str, Any] = optimizer.build_initial_state(parameter)
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
