"""Muon (https://kellerjordan.github.io/posts/muon/): updates by orthogonalized momentum.

Shapes: R rows and C columns of a matrix, or of each of the E experts whose matrices one parameter
holds.
"""

import math
from collections.abc import Iterable, Sequence
from inspect import unwrap
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from titanrun.components.optimizers import muon_owners
from titanrun.components.optimizers.adamw import adam_step
from titanrun.components.optimizers.config import MuonConfig
from titanrun.components.optimizers.muon_owners import (
    Bucket,
    Transfer,
    has_whole_matrices,
    join_matrices,
    plan_buckets,
    split_returned,
    start_gathering,
    start_returning,
)
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

    Of matrices that are split over one group of ranks, each is orthogonalized by one rank. Those
    that are split over several axes of the mesh are all-gathered for the update.
    """

    add_param_group = unwrap(Optimizer.add_param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter with a gradient.

        Collective over the ranks that share a matrix.
        """
        assert closure is None, "gradients are there before a step"
        groups = self.param_groups
        for group in groups:
            if group["matrices"]:
                self._update_matrices(group)
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

    def _update_matrices(self, group: dict[str, Any]) -> None:
        """Update the matrices of a group; the next bucket is exchanged meanwhile."""
        buckets = self._get_buckets([each for each in group["params"] if each.grad is not None])
        arriving = returning = None
        for bucket, following in zip_longest(buckets, buckets[1:]):
            current = arriving if arriving is not None else self._start(bucket, group)
            arriving = None if following is None else self._start(following, group)
            leaving = orthogonalize_bucket(
                bucket, current, steps=group["ns_steps"], dtype=group["ns_dtype"]
            )
            if returning is not None:
                self._finish(*returning, group)
            returning = (bucket, leaving)
        if returning is not None:
            self._finish(*returning, group)

    def _get_buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        """Return the buckets of matrices, planned once for each set of them."""
        plans: dict[tuple[int, ...], list[Bucket]] = self.__dict__.setdefault("_plans", {})
        key = tuple(map(id, parameters))
        if key not in plans:
            plans[key] = plan_buckets(parameters, limit=muon_owners.BUCKET_BYTES)
        return plans[key]

    def _start(self, bucket: Bucket, group: dict[str, Any]) -> list[Tensor] | Transfer:
        """Return the directions of a bucket's matrices, or their exchange with other ranks."""
        found = [self._update_momentum(parameter, group) for parameter in bucket.parameters]
        if bucket.group is None:
            return found
        return start_gathering(bucket, [to_local(direction) for direction in found])

    def _update_momentum(self, parameter: nn.Parameter, group: dict[str, Any]) -> Tensor:
        """Update a matrix's momentum, and return the direction of its step."""
        gradient: Any = parameter.grad
        if not self.state[parameter]:
            self.state[parameter] = self.build_initial_state(parameter)
        momentum: Tensor = self.state[parameter]["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum

    def _finish(
        self, bucket: Bucket, updates: list[Tensor] | Transfer, group: dict[str, Any]
    ) -> None:
        """Add the updates to the matrices of a bucket."""
        if isinstance(updates, Transfer):
            updates = split_returned(bucket, updates.wait())
        for parameter, update in zip(bucket.parameters, updates, strict=True):
            part = to_local(parameter)
            part.mul_(1 - group["lr"] * group["weight_decay"])
            scale = compute_update_scale(parameter.shape, group["adjust_lr"])
            part.add_(to_local(update), alpha=-group["lr"] * scale)


def orthogonalize_bucket(
    bucket: Bucket, given: list[Tensor] | Transfer, *, steps: int, dtype: torch.dtype
) -> list[Tensor] | Transfer:
    """Orthogonalize a bucket's matrices, or this rank's among them, which go back then."""
    if isinstance(given, Transfer):
        whole = join_matrices(bucket, given.wait())
        return start_returning(bucket, orthogonalize_all(whole, steps=steps, dtype=dtype))
    gathered = [
        to_local(each) if not is_sharded(each) or has_whole_matrices(each) else full_tensor(each)
        for each in given
    ]
    updates = orthogonalize_all(gathered, steps=steps, dtype=dtype)
    return [
        update if update.shape == to_local(each).shape else keep_own_part(each, update)
        for each, update in zip(given, updates, strict=True)
    ]


def keep_own_part(tensor: Tensor, whole: Tensor) -> Tensor:
    """Return this rank's part of `whole`, which all ranks hold, in the placements of `tensor`."""
    part = torch.empty_like(tensor)
    copy_full_into_(part, whole)
    return part


def orthogonalize_all(
    matrices: Sequence[Tensor], *, steps: int, dtype: torch.dtype
) -> list[Tensor]:
    """Orthogonalize matrices, those of equal shape together."""
    found: dict[int, Tensor] = {}
    shapes: dict[tuple[int, ...], list[int]] = {}
    for place, matrix in enumerate(matrices):
        shapes.setdefault(tuple(matrix.shape[-2:]), []).append(place)
    for (rows, columns), places in shapes.items():
        stacks = [matrices[place].reshape(-1, rows, columns) for place in places]
        result = orthogonalize(torch.cat(stacks), steps=steps, dtype=dtype)
        parts = result.split([stack.size(0) for stack in stacks])
        for place, part in zip(places, parts, strict=True):
            found[place] = part.view(matrices[place].shape)
    return [found[place] for place in range(len(matrices))]


def orthogonalize(matrix: Tensor, *, steps: int, dtype: torch.dtype) -> Tensor:
    """Approximate U V^T of the singular value decomposition U S V^T.

    Uses Newton-Schulz steps in `dtype`. Args are [R, C], or [E, R, C] for separate matrices.
    """
    first, third, fifth = COEFFICIENTS
    x = matrix.to(dtype).reshape(-1, *matrix.shape[-2:])
    is_tall = matrix.size(-2) > matrix.size(-1)
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        x = torch.baddbmm(x, factor, x, beta=first)
    return (x.mT if is_tall else x).to(matrix.dtype).reshape(matrix.shape)


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
