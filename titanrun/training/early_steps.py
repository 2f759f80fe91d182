"""Updates inside the backward pass: each weight as soon as its gradient is whole, whose memory is free again right after."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from titanrun.distributed.gradient_norm import PartNorm, part_norms, total_norm
from titanrun.distributed.shards import finished_gradients


class EarlySteps:
    """Steps an optimizer weight by weight, in whatever order their gradients come.

    Gradients are never there together: they cannot be clipped, and no update can be refused. FSDP calls the same hooks once ranks have
    added a gradient up.

    Args:
        optimizer: whose state is used, and whose settings count at the time of the backward pass.
        device: where ranks communicate.
    """

    def __init__(self, optimizer: Optimizer, *, device: torch.device) -> None:
        self.optimizer = optimizer
        self.device = device
        self._norms: list[PartNorm] = []
        # a copy has no hooks: what waits for a step of the optimizer waits for all weights
        self._alone = copy.copy(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(partial(self._update, group))

    def take_norm(self) -> Tensor:
        """L2 norm over all gradients of all ranks since it was last asked for."""
        norms, self._norms = self._norms, []
        return total_norm(norms, device=self.device)

    def _update(self, group: dict[str, Any], parameter: Tensor) -> None:
        """Updates one weight, and drops its gradient."""
        self._norms += part_norms(finished_gradients([parameter]), device=self.device)
        self._alone.param_groups = [{**group, "params": [parameter]}]
        self._alone.state = self.optimizer.state
        self._alone.step()
        parameter.grad = None
