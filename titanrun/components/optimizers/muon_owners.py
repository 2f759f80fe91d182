"""Distribution of Muon's matrices over ranks: each is orthogonalized by one rank, its owner.

Shapes: R rows and C columns of a matrix, or of each of the E experts whose matrices one parameter
holds.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from titanrun.distributed.dtensor import get_shard_groups, is_sharded

# whole matrices that are exchanged at once: few calls, and little memory beside the weights
BUCKET_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Matrices that are exchanged and orthogonalized together.

    Args:
        parameters: their parameters, with equal settings.
        owners: rank in `group` that orthogonalizes each.
        group: ranks that hold different parts of each. None: this rank has all of them.
    """

    parameters: tuple[nn.Parameter, ...]
    owners: tuple[int, ...]
    group: ProcessGroup | None

    def list_owned(self, rank: int) -> list[int]:
        """Return the places of a rank's matrices."""
        return [place for place, owner in enumerate(self.owners) if owner == rank]

    def compute_part_shape(self, place: int, rank: int) -> list[int]:
        """Return the shape of a rank's part of a matrix. The last ranks may have less."""
        assert self.group is not None
        shape, dim = list(self.parameters[place].shape), find_split_dim(self.parameters[place])
        each = -(-shape[dim] // self.group.size())
        shape[dim] = max(0, min(each, shape[dim] - rank * each))
        return shape


def find_split_dim(parameter: Any) -> int:
    """Return the dim along which a parameter is split over one group of ranks."""
    (split,) = (placement for placement in parameter.placements if not placement.is_replicate())
    dim: int = split.dim
    return dim


def find_owner_group(parameter: Any) -> ProcessGroup | None:
    """Return the ranks that can exchange a matrix, None if there is no such group.

    There is none if this rank has the whole matrix, or whole matrices of some experts, or if it is
    split over several axes of the mesh.
    """
    if not is_sharded(parameter) or has_whole_matrices(parameter):
        return None
    groups = get_shard_groups(parameter)
    return groups[0] if len(groups) == 1 else None


def has_whole_matrices(tensor: Any) -> bool:
    """Return whether ranks hold whole matrices of different experts."""
    return tensor.ndim == 3 and all(
        placement.is_replicate() or placement.is_shard(0) for placement in tensor.placements
    )


def compute_cost(shape: Sequence[int]) -> int:
    """Return the multiplications of a Newton-Schulz step, up to a factor."""
    *experts, rows, columns = shape
    return (experts[0] if experts else 1) * rows * columns * min(rows, columns)


def assign_owners(costs: Sequence[int], num_ranks: int) -> list[int]:
    """Return an owner for each cost: the most costly first, each to the least loaded rank."""
    owners, loads = [0] * len(costs), [0] * num_ranks
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        owners[place] = min(range(num_ranks), key=lambda rank: loads[rank])
        loads[owners[place]] += costs[place]
    return owners


def plan_buckets(parameters: Iterable[nn.Parameter], *, limit: int) -> list[Bucket]:
    """Return the buckets of all matrices, the same on all ranks that share them.

    A bucket has matrices of one dtype and one group, of at most `limit` bytes in total unless it is
    a single matrix.
    """
    kinds: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((find_owner_group(parameter), parameter.dtype), []).append(parameter)
    buckets = []
    for (group, _), members in kinds.items():
        costs = [compute_cost(parameter.shape) for parameter in members]
        owners = assign_owners(costs, 1 if group is None else group.size())
        # owners take turns within a bucket, and matrices of equal shape stand together
        ordered = sorted(range(len(members)), key=lambda place: (-costs[place], place))
        for places in split_by_bytes([(place, members[place]) for place in ordered], limit):
            buckets.append(
                Bucket(
                    tuple(members[place] for place in places),
                    tuple(owners[place] for place in places),
                    group,
                )
            )
    return buckets


def split_by_bytes(members: Iterable[tuple[int, nn.Parameter]], limit: int) -> Iterator[list[int]]:
    """Yield places of consecutive parameters with at most `limit` bytes in total."""
    found: list[int] = []
    total = 0
    for place, parameter in members:
        size = parameter.numel() * parameter.element_size()
        if found and total + size > limit:
            yield found
            found, total = [], 0
        found.append(place)
        total += size
    if found:
        yield found


@dataclass(frozen=True, slots=True)
class Transfer:
    """All-to-all exchange under way, and what it fills."""

    received: Tensor
    work: Any

    def wait(self) -> Tensor:
        """Return what the other ranks sent."""
        self.work.wait()
        return self.received


def start_gathering(bucket: Bucket, parts: Sequence[Tensor]) -> Transfer:
    """Send this rank's parts to their owners.

    Collective over the bucket's group, as `start_returning` is.
    """
    group = bucket.group
    assert group is not None
    sent = [[parts[place] for place in bucket.list_owned(rank)] for rank in range(group.size())]
    own = bucket.list_owned(group.rank())
    sizes = [
        sum(torch.Size(bucket.compute_part_shape(place, rank)).numel() for place in own)
        for rank in range(group.size())
    ]
    return start_exchange(sent, sizes, parts[0], group)


def join_matrices(bucket: Bucket, received: Tensor) -> list[Tensor]:
    """Return this rank's whole matrices from what `start_gathering` received."""
    group = bucket.group
    assert group is not None
    own = bucket.list_owned(group.rank())
    parts: list[list[Tensor]] = [[] for _ in own]
    start = 0
    for rank in range(group.size()):
        for found, place in zip(parts, own, strict=True):
            shape = bucket.compute_part_shape(place, rank)
            end = start + torch.Size(shape).numel()
            found.append(received[start:end].view(shape))
            start = end
    return [
        torch.cat(found, dim=find_split_dim(bucket.parameters[place]))
        for found, place in zip(parts, own, strict=True)
    ]


def start_returning(bucket: Bucket, updates: Sequence[Tensor]) -> Transfer:
    """Send each rank its parts of this rank's updates."""
    group = bucket.group
    assert group is not None
    own = bucket.list_owned(group.rank())
    split = [
        update.split(
            [
                bucket.compute_part_shape(place, rank)[dim]
                for rank in range(group.size())
                for dim in [find_split_dim(bucket.parameters[place])]
            ],
            dim=find_split_dim(bucket.parameters[place]),
        )
        for place, update in zip(own, updates, strict=True)
    ]
    sent = [[parts[rank] for parts in split] for rank in range(group.size())]
    sizes = [
        sum(
            torch.Size(bucket.compute_part_shape(place, group.rank())).numel()
            for place in bucket.list_owned(rank)
        )
        for rank in range(group.size())
    ]
    like = torch.empty(0, dtype=bucket.parameters[0].dtype, device=bucket.parameters[0].device)
    return start_exchange(sent, sizes, like, group)


def split_returned(bucket: Bucket, received: Tensor) -> list[Tensor]:
    """Return this rank's parts of all updates, in the order of the bucket."""
    group = bucket.group
    assert group is not None
    found: dict[int, Tensor] = {}
    start = 0
    for rank in range(group.size()):
        for place in bucket.list_owned(rank):
            shape = bucket.compute_part_shape(place, group.rank())
            end = start + torch.Size(shape).numel()
            found[place] = received[start:end].view(shape)
            start = end
    return [found[place] for place in range(len(bucket.parameters))]


def start_exchange(
    sent: Sequence[Sequence[Tensor]], sizes: list[int], like: Tensor, group: ProcessGroup
) -> Transfer:
    """Start sending some tensors to each rank, and receiving `sizes` numbers from each."""
    flat = [[part.flatten() for part in parts] for parts in sent]
    # without a first tensor, torch.cat has no dtype
    given = torch.cat([like.new_empty(0), *(part for parts in flat for part in parts)])
    received = like.new_empty(sum(sizes))
    work = dist.all_to_all_single(
        received,
        given,
        output_split_sizes=sizes,
        input_split_sizes=[sum(part.numel() for part in parts) for parts in flat],
        group=group,
        async_op=True,
    )
    return Transfer(received, work)
