"""Data parallelism: FSDP2, HSDP (groups of shards) and DDP (copies).

It works on any model that follows the contract of `model_parts`. Gradients are sums over the
ranks, never means: the loss of each rank is already divided by the valid tokens of the whole step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from titanrun.distributed.dtensor import to_local
from titanrun.distributed.model_parts import build_parameter_groups, get_model_parts, keeps_dtype
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import Precision

ReshardPolicy = Literal["default", "always", "never"]


class ModuleWrapper(Protocol):
    """Function that puts modules into one communication group.

    The weights of a group are gathered together, and its gradients are reduced together.
    """

    def __call__(
        self, modules: nn.Module | list[nn.Module], *, reshard_after_forward: bool
    ) -> None:
        """Wrap the modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelOptions:
    """Options of data parallelism for weights, gradients and optimizer states.

    Args:
        reshard_policy: whether gathered weights are freed after the forward pass. `default` is
            always, but never in a pipeline.
        precision: dtypes in which weights are stored and computed.
        reduce_dtype: dtype in which gradients are summed.
        uses_cpu_offload: whether weights, gradients and optimizer states stay in host memory.
        ignored_params: parameters that every rank holds whole and that are never trained.
    """

    reshard_policy: ReshardPolicy
    precision: Precision
    reduce_dtype: torch.dtype
    uses_cpu_offload: bool = False
    ignored_params: frozenset[Tensor] = frozenset()


def apply_data_parallel(
    model: nn.Module,
    options: DataParallelOptions,
    meshes: ParallelMeshes,
    *,
    experts: Sequence[nn.Module] = (),
) -> bool:
    """Shard or replicate the model over the data-parallel ranks, layer by layer.

    This is the last step before the weights are allocated. `experts` are already split by expert
    parallelism, if there is any, and are sharded over the ranks that have the same ones. Return
    whether there are data-parallel ranks.
    """
    wrap = choose_wrapper(options, meshes)
    if wrap is None:
        return False
    reshards = should_reshard_after_forward(
        options.reshard_policy, is_pipeline=meshes.parallel_dims.pp > 1
    )
    if meshes.sparse_mesh is not None:
        for module in experts:
            apply_fsdp_to_experts(module, options, meshes, reshard_after_forward=reshards)
    embeddings, layers, head = get_model_parts(model)
    wrap_as_stored = choose_wrapper(replace(options, precision=options.precision.as_stored), meshes)
    assert wrap_as_stored is not None
    for group in build_parameter_groups(embeddings, layers, head):
        # the head's weights are used last in the forward pass and first in the backward pass:
        # freeing them in between only costs time
        is_head = all(module in head for module in group)
        gather = wrap_as_stored if any(map(keeps_dtype, group)) else wrap
        gather(
            group, reshard_after_forward=options.reshard_policy == "always" if is_head else reshards
        )
    wrap(model, reshard_after_forward=reshards)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            disable_fsdp_gradient_division(module)
    if meshes.sparse_mesh is not None:
        # training-only layers would stay gathered, with stale weights, after a validation pass
        used = [layer for layer in layers if not getattr(layer, "is_training_only", False)]
        groups = build_parameter_groups(embeddings, [], head)
        is_tied = bool(embeddings and head) and len(groups) == 1
        set_prefetch_order(used if is_tied else [*embeddings, *used, *head[:1]])
    return True


def choose_wrapper(options: DataParallelOptions, meshes: ParallelMeshes) -> ModuleWrapper | None:
    """Return the function that shards (FSDP) or replicates (DDP) modules.

    Return None if there are no data-parallel ranks.
    """
    mesh = meshes.get_submesh(meshes.dense_mesh, "dp_replicate", "fsdp")
    if mesh is None:
        return None
    return partial(
        apply_fsdp if "fsdp" in (mesh.mesh_dim_names or ()) else apply_ddp,
        mesh=mesh,
        **build_fsdp_options(options, meshes),
    )


def apply_fsdp_to_experts(
    experts: nn.Module,
    options: DataParallelOptions,
    meshes: ParallelMeshes,
    *,
    reshard_after_forward: bool,
) -> None:
    """Shard a layer's experts over the ranks that hold the same ones.

    They are sharded by expert, or within each expert if there are too few experts.
    """
    degrees = meshes.parallel_dims
    ranks = degrees.efsdp_size or 1
    mesh = meshes.get_submesh(meshes.sparse_mesh, "dp_replicate", "efsdp")
    assert mesh is not None, "efsdp is kept even with one rank"

    def placement(weight: nn.Parameter) -> Shard:
        # FSDP pads dim 0 only
        splits_evenly = to_local(weight).size(1) % ranks == 0
        return Shard(1) if ranks * degrees.ep > weight.size(0) and splits_evenly else Shard(0)

    apply_fsdp(
        experts,
        reshard_after_forward=reshard_after_forward,
        mesh=mesh,
        shard_placement_fn=placement,
        **build_fsdp_options(options, meshes),
    )


def set_prefetch_order(parts: Sequence[nn.Module]) -> None:
    """Make each part prefetch the weights of the next one, and backward of the previous one.

    The parts are the embedding, the layers with their experts, and the head's first module, whose
    group is gathered with it.

    FSDP's own prefetching relies on a host that runs ahead of the device, but the host waits
    whenever tokens are sent to experts.
    """
    groups: list[list[FSDPModule]] = [
        [module for module in part.modules() if isinstance(module, FSDPModule)] for part in parts
    ]
    for before, after in pairwise(groups):
        before[0].set_modules_to_forward_prefetch(after)
        after[0].set_modules_to_backward_prefetch(before)


def build_fsdp_options(options: DataParallelOptions, meshes: ParallelMeshes) -> dict[str, Any]:
    """Build the keyword arguments of FSDP for precision and offloading."""
    offload = (
        CPUOffloadPolicy(pin_memory=meshes.device.type != "cpu")
        if options.uses_cpu_offload
        else OffloadPolicy()
    )
    return {
        "mp_policy": build_mixed_precision_policy(options),
        "offload_policy": offload,
        "ignored_params": set(options.ignored_params),
    }


def apply_fsdp(
    modules: nn.Module | list[nn.Module],
    *,
    reshard_after_forward: bool,
    mesh: DeviceMesh,
    **options: Any,
) -> None:
    """Apply FSDP2, or HSDP on a mesh of two axes."""
    fully_shard(
        cast(Any, modules), mesh=mesh, reshard_after_forward=reshard_after_forward, **options
    )


def apply_ddp(
    modules: nn.Module | list[nn.Module],
    *,
    reshard_after_forward: bool,
    mesh: DeviceMesh,
    **options: Any,
) -> None:
    """Apply DDP. Weights are never gathered, so they are never freed either."""
    replicate(cast(Any, modules), mesh=mesh, **options)


def build_mixed_precision_policy(options: DataParallelOptions) -> MixedPrecisionPolicy:
    """Build FSDP's policy: weights are gathered in the compute dtype.

    Gradients are reduced in `reduce_dtype`.
    """
    precision = options.precision
    compute = (
        None if precision.compute_dtype == precision.storage_dtype else precision.compute_dtype
    )
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=options.reduce_dtype)


def should_reshard_after_forward(policy: ReshardPolicy, *, is_pipeline: bool) -> bool:
    """Return whether gathered weights are freed after the forward pass.

    A pipeline needs them for the next microbatch right away.
    """
    return policy == "always" or (policy == "default" and not is_pipeline)


def disable_fsdp_gradient_division(module: FSDPModule) -> None:
    """Make FSDP sum gradients over the ranks without dividing them."""
    module.set_gradient_divide_factor(1.0)
    # gloo has no reduction that also multiplies
    module.set_force_sum_reduction_for_comms(True)


def tie_padded_shards(first: nn.Module, second: nn.Module) -> None:
    """Make two modules of different groups that share one parameter share its shard memory.

    Call this between the allocation and the first pass. FSDP pads a shard that is shorter than
    those of other ranks, in each group separately: the group that comes last would move the
    parameter into its own memory.
    """
    own, other = get_fsdp_param(first), get_fsdp_param(second)
    own.reset_sharded_param()
    other.sharded_param, other._sharded_param_data = own.sharded_param, own._sharded_param_data
    other.reset_sharded_param()


def get_fsdp_param(module: nn.Module) -> Any:
    """Return FSDP's record of the shard of a module's weight."""
    groups = cast(Any, module)._get_fsdp_state()._fsdp_param_groups
    return next(
        held for group in groups for held in group.fsdp_params if held._module_info.module is module
    )
