"""Checksums of this rank's tensors, to compare results or copies bit by bit."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.distributed.dtensor import is_sharded, to_local
from titanrun.distributed.object_collectives import RankGroup

# an integer dtype as wide as an element; sums of them change with every single bit
INTEGER_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

ChecksumsByName = dict[str, int]


def compute_checksums(tensors: Mapping[str, Tensor]) -> ChecksumsByName:
    """Return a checksum of this rank's part of each tensor, with one device transfer.

    Equal bits have equal sums.
    """
    if not tensors:
        return {}
    sums = [compute_checksum(to_local(tensor)) for tensor in tensors.values()]
    device = next((value.device for value in sums if value.device.type != "cpu"), sums[0].device)
    return dict(
        zip(tensors, torch.stack([value.to(device) for value in sums]).tolist(), strict=True)
    )


def compute_checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits, read as integers, on its device."""
    return (
        tensor.detach()
        .contiguous()
        .view(INTEGER_DTYPES[tensor.element_size()])
        .sum(dtype=torch.int64)
    )


def find_differing_names(one: ChecksumsByName, other: ChecksumsByName) -> list[str]:
    """Return the names whose checksums differ."""
    return [name for name in one | other if one.get(name) != other.get(name)]


def find_mismatched_copies(
    tensors: Mapping[str, Tensor], rank_group: RankGroup
) -> dict[str, list[int]]:
    """Return tensors whose copies differ between ranks, with the ranks in the minority.

    In a tie all ranks are listed. All ranks must call this. Ranks exchange one number per set of
    parts, and one number per tensor only if those differ.
    """
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        parts[format_shard_coordinates(tensor)][name] = tensor
    sums = {f"{part} {hash_words(held)}": compute_checksums(held) for part, held in parts.items()}
    totals = rank_group.all_gather_results(
        lambda: {
            part: hash_words(f"{name} {value}" for name, value in held.items())
            for part, held in sums.items()
        }
    )
    suspected = {
        part
        for part in set().union(*totals)
        if len({total[part] for total in totals if part in total}) > 1
    }
    if not suspected:
        return {}
    gathered = rank_group.all_gather_results(
        lambda: {
            (part, name): value
            for part in suspected & sums.keys()
            for name, value in sums[part].items()
        }
    )
    found: dict[str, list[int]] = {}
    for part, name in sorted(set().union(*gathered)):
        odd = find_minority_ranks(
            {rank: held[part, name] for rank, held in enumerate(gathered) if (part, name) in held}
        )
        if odd:
            found[name] = sorted({*found.get(name, ()), *odd})
    return found


def format_shard_coordinates(tensor: Any) -> str:
    """Return this rank's coordinates along each axis over which the tensor is sharded."""
    if not is_sharded(tensor):
        return "whole"
    mesh, names = tensor.device_mesh, tensor.device_mesh.mesh_dim_names or ()
    place = mesh.get_coordinate()
    return " ".join(
        f"{names[axis]}={place[axis]}"
        for axis, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )


def hash_words(words: Iterable[str]) -> str:
    """Return a short hash of all the words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def find_minority_ranks(values: Mapping[int, int]) -> list[int]:
    """Return the ranks whose value is not the most common one.

    Return all ranks if several values are equally common, and none if all are equal.
    """
    counts = Counter(values.values()).most_common()
    if len(counts) == 1:
        return []
    is_tie = counts[0][1] == counts[1][1]
    return [rank for rank, value in values.items() if is_tie or value != counts[0][0]]
