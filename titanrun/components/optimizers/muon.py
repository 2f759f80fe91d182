"""Muon (https://kellerjordan.github.io/posts/muon/): updates by orthogonalized momentum.

Shapes: R rows and C columns of a matrix, or of each of the E experts whose matrices one parameter
holds.
"""

import math
from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from titanrun.components.optimizers.adamw import adam_step
from titanrun.components.optimizers.config import MuonConfig
from titanrun.components.optimizers.param_group_config import matches_any_pattern
from titanrun.components.optimizers.param_groups import build_param_groups
from titanrun.distributed.dtensor import copy_full_into_, full_tensor, is_sharded, to_local
from titanrun.distributed.dtypes import get_dtype

# of the odd polynomial that pushes every singular value towards 1, tuned for few steps rather than
# for accuracy
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7


class Muon(AdamW):
    """Muon for groups with `matrices`, AdamW for the others.

    Sharded matrices are all-gathered only for the update.
    """

    add_param_group = unwrap(Optimizer.add_param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter with a gradient."""
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

    def build_initial_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter before its first update."""
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
            self.state[parameter] = self.build_initial_state(parameter)
        state = self.state[parameter]
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        towards = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        update = orthogonalize_sharded(towards, steps=group["ns_steps"], dtype=group["ns_dtype"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(
            update, alpha=-group["lr"] * compute_update_scale(parameter.shape, group["adjust_lr"])
        )


def orthogonalize_sharded(towards: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """Orthogonalize a tensor that may be sharded; the result has the same placements.

    All ranks of its mesh must call this.
    """
    if not is_sharded(towards):
        return orthogonalize(towards, steps=steps, dtype=dtype)
    update = torch.empty_like(towards)
    if has_whole_matrices(towards):
        to_local(update).copy_(orthogonalize(to_local(towards), steps=steps, dtype=dtype))
    else:
        copy_full_into_(update, orthogonalize(full_tensor(towards), steps=steps, dtype=dtype))
    return update


def has_whole_matrices(tensor: Any) -> bool:
    """Return whether ranks hold whole matrices of different experts."""
    return tensor.ndim == 3 and all(
        placement.is_replicate() or placement.is_shard(0) for placement in tensor.placements
    )


def orthogonalize(matrix: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """Approximate U V^T of the singular value decomposition U S V^T.

    Uses Newton-Schulz steps in `dtype`. Args are [R, C], or [E, R, C] for separate matrices.
    """
    first, third, fifth = COEFFICIENTS
    x: Tensor = matrix.to(dtype)
    is_tall = matrix.size(-2) > matrix.size(-1)
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        x = first * x + (third * gram + fifth * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrix.dtype)


def compute_update_scale(shape: torch.Size, rule: str) -> float:
    """Return the factor of a matrix's update.

    match_rms_adamw is from https://arxiv.org/abs/2502.16982.
    """
    rows, columns = shape[-2:]
    return (
        0.2 * math.sqrt(max(rows, columns))
        if rule == "match_rms_adamw"
        else math.sqrt(max(1, rows / columns))
    )


def build_muon(config: MuonConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Build Muon for the matrices and AdamW for the rest, with the groups of the recipe."""
    named = list(parameters)
    is_matrix = {
        name: parameter.ndim >= 2 and not matches_any_pattern(name, config.adamw_match)
        for name, parameter in named
    }
    groups = []
    for matrices in (True, False):
        for group in build_param_groups(
            config, [entry for entry in named if is_matrix[entry[0]] is matrices]
        ):
            groups.append({**group, "matrices": matrices})
    defaults = {
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "ns_steps": config.ns_steps,
        "ns_dtype": get_dtype(config.ns_dtype),
        "adjust_lr": config.adjust_lr,
    }
    return Muon(
        [{**defaults, **group} for group in groups],
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )
