"""Muon (https://kellerjordan.github.io/posts/muon/): the momentum of a matrix is orthogonalised before it becomes an update.

Shapes: R rows and C columns of a matrix, or of each of the E experts whose matrices one parameter holds.
"""

import math
from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from titanrun.components.optimizers.adamw import adam_step
from titanrun.components.optimizers.claims import matches
from titanrun.components.optimizers.config import MuonConfig
from titanrun.components.optimizers.groups import grouped
from titanrun.distributed.dtypes import dtype_named
from titanrun.distributed.shards import fill, gathered, is_split, own_part

# of the odd polynomial that pushes every singular value towards 1, tuned for few steps rather than for accuracy
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7


class Muon(AdamW):
    """Groups with `matrices` step by Muon, the others by AdamW. Parts of a matrix on other ranks are gathered for the update alone."""

    add_param_group = unwrap(Optimizer.add_param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient."""
        assert closure is None, "gradients are there before a step"
        groups = self.param_groups
        for group in groups:
            if group["matrices"]:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad, group)
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            adam_step(self)
        finally:
            self.param_groups = groups

    def initial_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The state of a parameter before its first update."""
        zeros = torch.zeros_like(parameter, requires_grad=False)
        if any(
            parameter is matrix
            for group in self.param_groups
            if group["matrices"]
            for matrix in group["params"]
        ):
            return {"momentum_buffer": zeros}
        return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": torch.zeros_like(zeros)}

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        if not self.state[parameter]:
            self.state[parameter] = self.initial_state(parameter)
        state = self.state[parameter]
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        towards = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        update = orthogonal_parts(towards, steps=group["ns_steps"], dtype=group["ns_dtype"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(
            update, alpha=-group["lr"] * size_factor(parameter.shape, group["adjust_lr"])
        )


def orthogonal_parts(towards: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """`orthogonalised` of a tensor of which this rank may hold a part, placed as it is."""
    if not is_split(towards):
        return orthogonalised(towards, steps=steps, dtype=dtype)
    update = torch.empty_like(towards)
    if has_whole_matrices(towards):
        own_part(update).copy_(orthogonalised(own_part(towards), steps=steps, dtype=dtype))
    else:
        fill(update, orthogonalised(gathered(towards), steps=steps, dtype=dtype))
    return update


def has_whole_matrices(tensor: Any) -> bool:
    """Whether ranks hold different experts, and none a part of one."""
    return tensor.ndim == 3 and all(
        placement.is_replicate() or placement.is_shard(0) for placement in tensor.placements
    )


def orthogonalised(matrix: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """About U V^T of the singular value decomposition U S V^T, by Newton-Schulz steps in `dtype`: [R, C], or [E, R, C] one by one."""
    first, third, fifth = COEFFICIENTS
    x = matrix.to(dtype)
    is_tall = matrix.size(-2) > matrix.size(-1)
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        x = first * x + (third * gram + fifth * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrix.dtype)


def size_factor(shape: torch.Size, rule: str) -> float:
    """What an update is multiplied by for a matrix of that size (match_rms_adamw: https://arxiv.org/abs/2502.16982)."""
    rows, columns = shape[-2:]
    return (
        0.2 * math.sqrt(max(rows, columns))
        if rule == "match_rms_adamw"
        else math.sqrt(max(1, rows / columns))
    )


def build_muon(config: MuonConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Muon for the matrices, AdamW for the rest, each in the groups of the recipe."""
    named = list(parameters)
    is_matrix = {
        name: parameter.ndim >= 2 and not matches(name, config.adamw_match)
        for name, parameter in named
    }
    groups = []
    for matrices in (True, False):
        for group in grouped(config, [entry for entry in named if is_matrix[entry[0]] is matrices]):
            groups.append({**group, "matrices": matrices})
    defaults = {
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "ns_steps": config.ns_steps,
        "ns_dtype": dtype_named(config.ns_dtype),
        "adjust_lr": config.adjust_lr,
    }
    return Muon(
        [{**defaults, **group} for group in groups],
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )
