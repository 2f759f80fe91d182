"""Tensors of which this rank may hold a part: the part, the whole, and how a whole is put into parts. No import of DTensor.

A tensor that is split over a device mesh is recognised by its placements: importing torch.distributed.tensor takes a second, which
one process alone need not spend.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def is_split(tensor: Tensor) -> bool:
    """Whether the tensor is one of a device mesh (a DTensor), of which each rank holds its part or a copy."""
    return hasattr(tensor, "placements")


def own_part(tensor: Tensor, *, gradients: Sequence[Any] | None = None) -> Tensor:
    """What this rank holds of a tensor, no copy. `gradients` are the placements of its gradient; None: as its own."""
    part: Tensor = tensor.to_local(grad_placements=gradients) if is_split(tensor) else tensor  # type: ignore[attr-defined]
    return part


def plain(tensor: Tensor) -> Tensor:
    """The tensor without the wrapper that FSDP gathers float8 weights by, no copy; others as they are."""
    inner = getattr(own_part(tensor), "_tensor", None)
    if inner is None or not is_split(tensor):
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
def with_other_columns(tensor: Tensor, own_columns: int, columns: int) -> Tensor:
    """Zeros in fp32, split as `tensor` is but for its last dim: `own_columns` of the whole's `columns` lie on this rank."""
    part = own_part(tensor)
    zeros = torch.zeros(*part.shape[:-1], own_columns, dtype=torch.float32, device=part.device)
    if not is_split(tensor):
        return zeros
    placed: Any = tensor
    shape = torch.Size([*tensor.shape[:-1], columns])
    from_local = import_module("torch.distributed.tensor").DTensor.from_local
    stride = torch.empty(shape, device="meta").stride()
    found: Tensor = from_local(
        zeros, placed.device_mesh, placed.placements, run_check=False, shape=shape, stride=stride
    )
    # weights in host memory have their states there too, and from_local moves them to the mesh's device
    return found.to(tensor.device)


def split_over(tensor: Tensor) -> list[ProcessGroup]:
    """The groups of ranks that hold different parts of a tensor; empty where this rank holds all of it."""
    if not is_split(tensor):
        return []
    placed: Any = tensor
    assert not any(placement.is_partial() for placement in placed.placements), (
        "a gradient is left to be added up"
    )
    return [
        placed.device_mesh.get_group(axis)
        for axis, placement in enumerate(placed.placements)
        if not placement.is_replicate()
    ]


def finished_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of those parameters that have one, each added up over the ranks that hold summands of it."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        if (
            gradient is not None
            and is_split(gradient)
            and any(placement.is_partial() for placement in gradient.placements)
        ):
            placed: Any = parameter
            parameter.grad = gradient.redistribute(placements=placed.placements)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def hush_gathers() -> None:
    """Keeps torch from warning that weights which are split twice over are gathered axis after axis."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor on every rank; all ranks of its mesh must call it."""
    whole: Tensor = tensor.full_tensor() if is_split(tensor) else tensor  # type: ignore[attr-defined]
    return whole


def from_all_stages(
    tensors: Mapping[str, Tensor], group: ProcessGroup, *, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Each tensor that any rank of `group` holds, whole, on all of them: one at a time, and all must read to the end."""
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
                gathered(tensors[name]).to(device).contiguous()
                if is_mine
                else torch.empty(shape, dtype=dtype, device=device)
            )
            dist.broadcast(whole, group=group, group_src=rank)
            yield name, whole


@torch.no_grad()
def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copies `whole`, which every rank has, into `tensor`: each rank its part, without communication. Or part into part."""
    if is_split(whole) or not is_split(tensor):
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
    own_part(tensor).copy_(own_part(split))
