"""The ranks of a run as device meshes: one axis for each kind of parallelism, and the axes that follow from them.

Outermost axis first, the ranks are laid out as (pp, dp_replicate, dp_shard, cp, tp). Three views of that grid share it: `loading`
(pp, batch, cp, tp) says who reads which tokens, `dense` (pp, dp_replicate, fsdp, tp) who holds which part of a weight, `sparse`
(pp, dp_replicate, efsdp, ep, etp) who holds which expert.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from titanrun.distributed.degrees import Degrees

Axes = dict[str, int]


class Meshes:
    """The meshes of one rank. Process groups are made when an axis is first asked for; every rank must ask in the same order.

    An axis of one rank has no mesh: there is nothing to communicate. With expert parallelism fsdp and efsdp are kept, so that
    experts and all else get the mixed precision of FSDP.
    """

    def __init__(self, degrees: Degrees, device: torch.device) -> None:
        self.degrees = degrees
        self.device = device
        self.rank = dist.get_rank()
        self._world = init_device_mesh(device.type, (degrees.ranks,), mesh_dim_names=("world",))

    @cached_property
    def dense(self) -> DeviceMesh | None:
        """Who holds which part of a weight: (pp, dp_replicate, fsdp, tp), without the axes of one rank."""
        degrees = self.degrees
        axes = {
            "pp": degrees.pipeline,
            "dp_replicate": degrees.replicate,
            "fsdp": degrees.fsdp,
            "tp": degrees.tensor,
        }
        return self._view(axes, kept=("fsdp",) if degrees.expert > 1 else ())

    @cached_property
    def sparse(self) -> DeviceMesh | None:
        """Who holds which part of an expert: (pp, dp_replicate, efsdp, ep, etp); None without expert parallelism."""
        degrees = self.degrees
        if degrees.expert == 1:
            return None
        assert degrees.efsdp is not None, "a rule refuses expert ranks that do not fit"
        axes = {
            "pp": degrees.pipeline,
            "dp_replicate": degrees.replicate,
            "efsdp": degrees.efsdp,
            "ep": degrees.expert,
        }
        return self._view(axes | {"etp": degrees.expert_tensor}, kept=("efsdp",))

    @cached_property
    def loading(self) -> DeviceMesh | None:
        """Who reads which tokens: (pp, batch, cp, tp), without the axes of one rank."""
        degrees = self.degrees
        return self._view(
            {
                "pp": degrees.pipeline,
                "batch": degrees.batch,
                "cp": degrees.context,
                "tp": degrees.tensor,
            }
        )

    @cached_property
    def _losses(self) -> DeviceMesh | None:
        return self._view(
            {"pp": self.degrees.pipeline, "loss": self.degrees.loss, "tp": self.degrees.tensor}
        )

    def axes(self, view: DeviceMesh | None, *names: str) -> DeviceMesh | None:
        """The part of a view along those of its axes that it has; None where it has none of them."""
        present = (
            ()
            if view is None
            else tuple(name for name in names if name in (view.mesh_dim_names or ()))
        )
        return view[present] if view is not None and present else None

    def group(self, name: str) -> dist.ProcessGroup | None:
        """The process group of this rank along the axis `pp`, `tp`, `cp`, `loss`, `dp_replicate` or `fsdp`; None for one rank alone."""
        view = self._losses if name == "loss" else self.loading if name == "cp" else self.dense
        mesh = self.axes(view, name)
        return None if mesh is None else mesh.get_group()

    @property
    def batch_rank(self) -> int:
        """Which share of each global batch this rank reads."""
        degrees = self.degrees
        return self.rank // (degrees.context * degrees.tensor) % degrees.batch

    @property
    def stage(self) -> int:
        """Which pipeline rank this is."""
        return self.rank * self.degrees.pipeline // self.degrees.ranks

    def sum_(self, tensor: Tensor, *axes: str) -> Tensor:
        """Adds `tensor` up over the ranks along `axes`, in place."""
        return self._reduced(tensor, axes, dist.ReduceOp.SUM)

    def largest_(self, tensor: Tensor, *axes: str) -> Tensor:
        """Makes each element of `tensor` the largest of the ranks along `axes`, in place."""
        return self._reduced(tensor, axes, dist.ReduceOp.MAX)

    def _reduced(self, tensor: Tensor, axes: Sequence[str], operation: Any) -> Tensor:
        for axis in axes:
            group = self.group(axis)
            if group is not None:
                dist.all_reduce(tensor, operation, group=group)
        return tensor

    def _view(self, axes: Axes, kept: tuple[str, ...] = ()) -> DeviceMesh | None:
        present = {name: size for name, size in axes.items() if size > 1 or name in kept}
        return (
            self._world._unflatten(0, tuple(present.values()), tuple(present)) if present else None
        )
