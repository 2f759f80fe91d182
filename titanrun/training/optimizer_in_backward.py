"""Optimizer updates during the backward pass, which free each gradient immediately."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from titanrun.distributed.dtensor import reduce_partial_gradients
from titanrun.distributed.grad_norm import ShardNorm, compute_shard_norms, compute_total_norm


class OptimizerInBackward:
    """Optimizer that updates each weight as soon as its gradient is complete.

    All gradients never exist at the same time, so they cannot be clipped, and an update cannot be
    rejected. FSDP calls the same hooks after it has reduced a gradient over ranks.

    Args:
        optimizer: provides the state, and the settings at the time of the backward pass.
        device: the device on which ranks communicate.
    """

    def __init__(self, optimizer: Optimizer, *, device: torch.device) -> None:
        self.optimizer = optimizer
        self.device = device
        self._shard_norms: list[ShardNorm] = []
        # a copy without hooks: hooks on an optimizer step must run once for all weights
        self._one_parameter_optimizer = copy.copy(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(partial(self._step_parameter, group))

    def pop_grad_norm(self) -> Tensor:
        """Compute the L2 norm over all gradients of all ranks since the last call."""
        norms, self._shard_norms = self._shard_norms, []
        return compute_total_norm(norms, device=self.device)

    def _step_parameter(self, group: dict[str, Any], parameter: Tensor) -> None:
        """Update one weight and drop its gradient."""
        self._shard_norms += compute_shard_norms(
            reduce_partial_gradients([parameter]), device=self.device
        )
        self._one_parameter_optimizer.param_groups = [{**group, "params": [parameter]}]
        self._one_parameter_optimizer.state = self.optimizer.state
        self._one_parameter_optimizer.step()
        parameter.grad = None
