"""DTensor helpers: local part, full tensor, and sharding, without importing DTensor.

A tensor that is split over a device mesh is recognized by its placements: importing
torch.distributed.tensor takes a second, which a single process need not spend.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the tensor is a DTensor, of which each rank holds a part or a copy."""
    return hasattr(tensor, "placements")


def to_local(tensor: Tensor, *, grad_placements: Sequence[Any] | None = None) -> Tensor:
    """Return this rank's part of a tensor without a copy.

    `grad_placements` are the placements of its gradient. None: those of the tensor.
    """
    part: Tensor = (
        tensor.to_local(grad_placements=grad_placements)  # type: ignore[attr-defined]
        if is_sharded(tensor)
        else tensor
    )
    return part


def unwrap_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor without FSDP's wrapper for float8 weights, without a copy.

    Other tensors are returned as they are.
    """
    inner = getattr(to_local(tensor), "_tensor", None)
    if inner is None or not is_sharded(tensor):
        return tensor if inner is None else inner
    placed: Any = tensor
    from_local = import_module("torch.distributed.tensor").DTensor.from_local
    unwrapped: Tensor = from_local(
        inner,
        placed.device_mesh,
        placed.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return unwrapped


@torch.no_grad()
def new_zeros_with_columns(tensor: Tensor, local_columns: int, columns: int) -> Tensor:
    """Return fp32 zeros with the placements of `tensor` and another last dim.

    Args:
        tensor: the tensor whose shape and placements are used for all other dims.
        local_columns: size of the last dim on this rank.
        columns: size of the last dim of the whole tensor.
    """
    part = to_local(tensor)
    zeros = torch.zeros(*part.shape[:-1], local_columns, dtype=torch.float32, device=part.device)
    if not is_sharded(tensor):
        return zeros
    placed: Any = tensor
    shape = torch.Size([*tensor.shape[:-1], columns])
    from_local = import_module("torch.distributed.tensor").DTensor.from_local
    stride = torch.empty(shape, device="meta").stride()
    found: Tensor = from_local(
        zeros, placed.device_mesh, placed.placements, run_check=False, shape=shape, stride=stride
    )
    # weights in host memory have their states there too, but from_local moves them to the mesh's
    # device
    return found.to(tensor.device)


def get_shard_groups(tensor: Tensor) -> list[ProcessGroup]:
    """Return the groups of ranks that hold different parts of a tensor.

    Return an empty list if this rank holds all of it.
    """
    if not is_sharded(tensor):
        return []
    placed: Any = tensor
    assert not any(placement.is_partial() for placement in placed.placements), (
        "a gradient is still a partial sum"
    )
    return [
        placed.device_mesh.get_group(axis)
        for axis, placement in enumerate(placed.placements)
        if not placement.is_replicate()
    ]


def reduce_partial_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """All-reduce partial gradients and return the gradients of the parameters that have one.

    Collective over the mesh of each partial gradient: all its ranks must call this.
    """
    for parameter in parameters:
        gradient: Any = parameter.grad
        if (
            gradient is not None
            and is_sharded(gradient)
            and any(placement.is_partial() for placement in gradient.placements)
        ):
            placed: Any = parameter
            parameter.grad = gradient.redistribute(placements=placed.placements)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def silence_gather_warnings() -> None:
    """Silence torch's warning about gathering doubly split weights axis by axis."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def full_tensor(tensor: Tensor) -> Tensor:
    """All-gather a sharded tensor. All ranks of its mesh must call this."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return whole


def iter_tensors_from_all_stages(
    tensors: Mapping[str, Tensor], group: ProcessGroup, *, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor that any rank of `group` holds, in full, on all its ranks.

    Collective over `group`: all ranks must iterate to the end. One tensor is sent at a time.
    """
    held: list[Any] = [None] * group.size()
    dist.all_gather_object(
        held, [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()], group=group
    )
    given: set[str] = set()
    for rank, described in enumerate(held):
        # the ends of a pipeline may hold the same matrix
        for name, shape, dtype in [entry for entry in described if entry[0] not in given]:
            given.add(name)
            is_mine = rank == group.rank()
            whole = (
                full_tensor(tensors[name]).to(device).contiguous()
                if is_mine
                else torch.empty(shape, dtype=dtype, device=device)
            )
            dist.broadcast(whole, group=group, group_src=rank)
            yield name, whole


@torch.no_grad()
def copy_full_into_(tensor: Tensor, whole: Tensor) -> None:
    """Copy `whole`, which every rank holds, into `tensor` without communication.

    Each rank copies its part. A sharded `whole` is copied part by part.
    """
    if is_sharded(whole) or not is_sharded(tensor):
        tensor.copy_(whole)
        return
    placed: Any = tensor
    distribute = import_module("torch.distributed.tensor").distribute_tensor
    split = distribute(
        whole.to(placed.device_mesh.device_type),
        placed.device_mesh,
        placed.placements,
        src_data_rank=None,
    )
    to_local(tensor).copy_(to_local(split))
