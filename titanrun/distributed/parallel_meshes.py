"""Device meshes of a run: one axis per kind of parallelism, and derived axes.

The ranks are laid out as (pp, dp_replicate, dp_shard, cp, tp), outermost axis first. Three views
share that grid: `dataloading` (pp, batch, cp, tp) determines who reads which tokens, `dense` (pp,
dp_replicate, fsdp, tp) who holds which part of a weight, and `sparse` (pp, dp_replicate, efsdp, ep,
etp) who holds which expert.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from titanrun.distributed.spec.parallel_dims import ParallelDims

AxisSizes = dict[str, int]


class ParallelMeshes:
    """Device meshes of one rank.

    Process groups are created on first use of an axis, so all ranks must request axes in the same
    order. An axis of one rank has no mesh, since there is nothing to communicate. With expert
    parallelism fsdp and efsdp are kept, so that experts and all other modules get the mixed
    precision of FSDP.
    """

    def __init__(self, parallel_dims: ParallelDims, device: torch.device) -> None:
        self.parallel_dims = parallel_dims
        self.device = device
        self.rank = dist.get_rank()
        self._world_mesh = init_device_mesh(
            device.type, (parallel_dims.world_size,), mesh_dim_names=("world",)
        )

    @cached_property
    def dense_mesh(self) -> DeviceMesh | None:
        """Mesh (pp, dp_replicate, fsdp, tp) of the parts of a weight, without axes of one rank."""
        degrees = self.parallel_dims
        axes = {
            "pp": degrees.pp,
            "dp_replicate": degrees.dp_replicate,
            "fsdp": degrees.fsdp_size,
            "tp": degrees.tp,
        }
        return self._unflatten_world(axes, kept=("fsdp",) if degrees.ep > 1 else ())

    @cached_property
    def sparse_mesh(self) -> DeviceMesh | None:
        """Mesh (pp, dp_replicate, efsdp, ep, etp) of experts, None without expert parallelism."""
        degrees = self.parallel_dims
        if degrees.ep == 1:
            return None
        assert degrees.efsdp_size is not None, "a rule rejects expert degrees that do not fit"
        axes = {
            "pp": degrees.pp,
            "dp_replicate": degrees.dp_replicate,
            "efsdp": degrees.efsdp_size,
            "ep": degrees.ep,
        }
        return self._unflatten_world(axes | {"etp": degrees.etp}, kept=("efsdp",))

    @cached_property
    def dataloading_mesh(self) -> DeviceMesh | None:
        """Mesh (pp, batch, cp, tp) of the tokens that ranks read, without axes of one rank."""
        degrees = self.parallel_dims
        return self._unflatten_world(
            {
                "pp": degrees.pp,
                "batch": degrees.dp_size,
                "cp": degrees.cp,
                "tp": degrees.tp,
            }
        )

    @cached_property
    def _loss_mesh(self) -> DeviceMesh | None:
        return self._unflatten_world(
            {
                "pp": self.parallel_dims.pp,
                "loss": self.parallel_dims.loss_size,
                "tp": self.parallel_dims.tp,
            }
        )

    def get_submesh(self, mesh: DeviceMesh | None, *names: str) -> DeviceMesh | None:
        """Return the submesh along those of the named axes that exist, or None without any."""
        present = (
            ()
            if mesh is None
            else tuple(name for name in names if name in (mesh.mesh_dim_names or ()))
        )
        return mesh[present] if mesh is not None and present else None

    def get_group(self, name: str) -> dist.ProcessGroup | None:
        """Return this rank's process group along an axis, or None if it has one rank.

        The axis is `pp`, `tp`, `cp`, `loss`, `dp_replicate` or `fsdp`.
        """
        view = (
            self._loss_mesh
            if name == "loss"
            else self.dataloading_mesh
            if name == "cp"
            else self.dense_mesh
        )
        mesh = self.get_submesh(view, name)
        return None if mesh is None else mesh.get_group()

    @property
    def dp_rank(self) -> int:
        """Data-parallel rank: index of the part of each global batch that this rank reads."""
        return self.parallel_dims.get_dp_rank(self.rank)

    @property
    def pp_rank(self) -> int:
        """Pipeline rank."""
        return self.parallel_dims.get_pp_rank(self.rank)

    def all_reduce_sum_(self, tensor: Tensor, *axes: str) -> Tensor:
        """Sum `tensor` over the ranks along `axes`, in place."""
        return self._all_reduce_(tensor, axes, dist.ReduceOp.SUM)

    def all_reduce_max_(self, tensor: Tensor, *axes: str) -> Tensor:
        """Take the element-wise maximum of `tensor` over the ranks along `axes`, in place."""
        return self._all_reduce_(tensor, axes, dist.ReduceOp.MAX)

    def _all_reduce_(self, tensor: Tensor, axes: Sequence[str], operation: Any) -> Tensor:
        for axis in axes:
            group = self.get_group(axis)
            if group is not None:
                dist.all_reduce(tensor, operation, group=group)
        return tensor

    def _unflatten_world(self, axes: AxisSizes, kept: tuple[str, ...] = ()) -> DeviceMesh | None:
        present = {name: size for name, size in axes.items() if size > 1 or name in kept}
        return (
            self._world_mesh._unflatten(0, tuple(present.values()), tuple(present))
            if present
            else None
        )
