"""Data parallelism: shards (FSDP2), groups of shards (HSDP) and copies (DDP), on any model that keeps the contract of its parts.

Gradients are sums over the ranks, never means: the loss of each rank is divided by the valid tokens of the whole step already.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol, cast

import torch
from torch import nn
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

from titanrun.distributed.mesh import Meshes
from titanrun.distributed.precision import Precision
from titanrun.distributed.shards import own_part

Reshard = Literal["default", "always", "never"]


class Wrap(Protocol):
    """Puts modules into one group, whose weights are gathered together and whose gradients are summed together."""

    def __call__(self, modules: nn.Module | list[nn.Module], *, reshard: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How weights, gradients and optimizer states are shared.

    Args:
        reshard: whether gathered weights are dropped after the forward pass; `default` is always, but never in a pipeline.
        precision: what weights are stored and computed in.
        reduce: what gradients are summed in.
        offload: whether weights, gradients and optimizer states live in host memory.
        apart: parameters that every rank holds whole and that are never trained.
    """

    reshard: Reshard
    precision: Precision
    reduce: torch.dtype
    offload: bool = False
    apart: frozenset[nn.Parameter] = frozenset()


def share_over_ranks(
    model: nn.Module,
    data_parallel: DataParallel,
    meshes: Meshes,
    *,
    experts: Sequence[nn.Module] = (),
) -> bool:
    """Shards or copies the model over the data-parallel ranks, layer by layer; the last step before its weights are allocated.

    `experts` are split by expert parallelism already, if there is any, and are shared by the ranks that have the same ones. Gives
    whether there are such ranks.
    """
    wrap = wrapping(data_parallel, meshes)
    if wrap is None:
        return False
    reshards = reshards_after_forward(
        data_parallel.reshard, is_pipeline=meshes.degrees.pipeline > 1
    )
    if meshes.sparse is not None:
        for module in experts:
            share_experts(module, data_parallel, meshes, reshard=reshards)
    embeddings, layers, head = parts_of(model)
    wrap_as_stored = wrapping(
        replace(data_parallel, precision=data_parallel.precision.without_autocast), meshes
    )
    assert wrap_as_stored is not None
    for group in groups_of(embeddings, layers, head):
        # the head's weights are used last and needed first in the backward pass: dropping them in between only costs
        is_head = all(module in head for module in group)
        gather = wrap_as_stored if any(map(keeps_dtype, group)) else wrap
        gather(group, reshard=data_parallel.reshard == "always" if is_head else reshards)
    wrap(model, reshard=reshards)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            sum_gradients(module)
    if meshes.sparse is not None:
        # layers that run in training alone would stay gathered after a held-out pass, and old
        prefetch_in_order(
            [layer for layer in layers if not getattr(layer, "is_for_training_alone", False)]
        )
    return True


def wrapping(data_parallel: DataParallel, meshes: Meshes) -> Wrap | None:
    """What shards (where ranks share a copy) or copies; None where no rank has anything to share."""
    mesh = meshes.axes(meshes.dense, "dp_replicate", "fsdp")
    if mesh is None:
        return None
    return partial(
        shard if "fsdp" in (mesh.mesh_dim_names or ()) else copy,
        mesh=mesh,
        **policies(data_parallel, meshes),
    )


def share_experts(
    experts: nn.Module, data_parallel: DataParallel, meshes: Meshes, *, reshard: bool
) -> None:
    """Shards a layer's experts over the ranks that have the same ones: by expert, or within them where there are too few."""
    degrees = meshes.degrees
    ranks = degrees.efsdp or 1
    mesh = meshes.axes(meshes.sparse, "dp_replicate", "efsdp")
    assert mesh is not None, "efsdp is kept where it has one rank"

    def placement(weight: nn.Parameter) -> Shard:
        # FSDP pads dim 0 only
        splits_evenly = own_part(weight).size(1) % ranks == 0
        return Shard(1) if ranks * degrees.expert > weight.size(0) and splits_evenly else Shard(0)

    shard(
        experts,
        reshard=reshard,
        mesh=mesh,
        shard_placement_fn=placement,
        **policies(data_parallel, meshes),
    )


def prefetch_in_order(layers: Sequence[nn.Module]) -> None:
    """Lets each layer ask for the weights of the next one, and in the backward pass of the one before.

    By itself FSDP counts on a host that runs ahead of the device, and the host waits wherever tokens are sent to experts.
    """
    groups = [
        [module for module in layer.modules() if isinstance(module, FSDPModule)] for layer in layers
    ]
    for before, after in pairwise(groups):
        before[0].set_modules_to_forward_prefetch(after)
        after[0].set_modules_to_backward_prefetch(before)


def policies(data_parallel: DataParallel, meshes: Meshes) -> dict[str, Any]:
    """Precision and place of what is shared, in FSDP's words."""
    offload = (
        CPUOffloadPolicy(pin_memory=meshes.device.type != "cpu")
        if data_parallel.offload
        else OffloadPolicy()
    )
    return {
        "mp_policy": mixed_precision(data_parallel),
        "offload_policy": offload,
        "ignored_params": set(data_parallel.apart),
    }


def shard(
    modules: nn.Module | list[nn.Module], *, reshard: bool, mesh: DeviceMesh, **options: Any
) -> None:
    """FSDP2, or HSDP on a mesh of two axes."""
    fully_shard(cast(Any, modules), mesh=mesh, reshard_after_forward=reshard, **options)


def copy(
    modules: nn.Module | list[nn.Module], *, reshard: bool, mesh: DeviceMesh, **options: Any
) -> None:
    """DDP: nothing is gathered, so that nothing is dropped either."""
    replicate(cast(Any, modules), mesh=mesh, **options)


def mixed_precision(data_parallel: DataParallel) -> MixedPrecisionPolicy:
    """Weights are gathered in the dtype of matrix products, gradients summed in their own."""
    precision = data_parallel.precision
    compute = None if precision.compute == precision.storage else precision.compute
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=data_parallel.reduce)


def reshards_after_forward(policy: Reshard, *, is_pipeline: bool) -> bool:
    """Whether gathered weights are dropped. A pipeline uses them for the next microbatch right away."""
    return policy == "always" or (policy == "default" and not is_pipeline)


def parts_of(model: nn.Module) -> tuple[list[nn.Module], list[nn.Module], list[nn.Module]]:
    """Embeddings, layers and head of a model or of a pipeline stage, as far as it has them.

    The contract that any model keeps: `tok_embeddings`, `layers`, `norm` and `output`, None where a stage lacks one of them.
    """
    present = {name: part for name, part in model.named_children() if part is not None}
    embeddings = [present[name] for name in ("tok_embeddings",) if name in present]
    head = [present[name] for name in ("norm", "output") if name in present]
    return embeddings, list(present["layers"].children()) if "layers" in present else [], head


def groups_of(
    embeddings: list[nn.Module], layers: Sequence[nn.Module], head: list[nn.Module]
) -> list[list[nn.Module]]:
    """The modules that are gathered together; a matrix that embedding and head share must not be in two groups."""
    blocks = [[layer] for layer in layers]
    shared = {id(weight) for module in embeddings for weight in module.parameters()}
    if any(id(weight) in shared for module in head for weight in module.parameters()):
        return [*blocks, [*embeddings, *head]]
    heads = [[module] for module in head] if any(map(keeps_dtype, head)) else [head]
    return [group for group in (embeddings, *blocks, *heads) if group]


def keeps_dtype(module: nn.Module) -> bool:
    """Whether a module says that it computes with its weights as they are stored, whatever others compute in."""
    return getattr(module, "keeps_dtype", False)


def sum_gradients(module: FSDPModule) -> None:
    """Gradients are added up over the ranks and not divided."""
    module.set_gradient_divide_factor(1.0)
    # gloo has no operation that multiplies while it sums
    module.set_force_sum_reduction_for_comms(True)


def share_padded(first: nn.Module, second: nn.Module) -> None:
    """Lets two modules of different groups, whose weight is one parameter, keep one memory of their shard of it.

    To be called between the allocation and the first pass. FSDP pads a shard that is shorter than others', and each group by itself: the
    group that comes last would move the parameter into memory of its own.
    """
    own, other = shard_of(first), shard_of(second)
    own.reset_sharded_param()
    other.sharded_param, other._sharded_param_data = own.sharded_param, own._sharded_param_data
    other.reset_sharded_param()


def shard_of(module: nn.Module) -> Any:
    """What FSDP knows of the shard of a module's weight."""
    groups = cast(Any, module)._get_fsdp_state()._fsdp_param_groups
    return next(
        held for group in groups for held in group.fsdp_params if held._module_info.module is module
    )
