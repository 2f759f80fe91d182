"""Checksums of what this rank holds of tensors, by which two results, or the copies on two ranks, are compared bit by bit."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.distributed.agreement import Ranks
from titanrun.distributed.shards import is_split, own_part

# a whole number as wide as an element; sums of them show every single bit
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Sums = dict[str, int]


def checksums(tensors: Mapping[str, Tensor]) -> Sums:
    """A checksum of this rank's part of each tensor; equal bits give equal sums. One transfer from the device."""
    if not tensors:
        return {}
    sums = [checksum(own_part(tensor)) for tensor in tensors.values()]
    device = next((value.device for value in sums if value.device.type != "cpu"), sums[0].device)
    return dict(
        zip(tensors, torch.stack([value.to(device) for value in sums]).tolist(), strict=True)
    )


def checksum(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, read as whole numbers, on its device."""
    return tensor.detach().contiguous().view(WHOLE[tensor.element_size()]).sum(dtype=torch.int64)


def differing(one: Sums, other: Sums) -> list[str]:
    """Names under which the two differ."""
    return [name for name in one | other if one.get(name) != other.get(name)]


def odd_copies(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, list[int]]:
    """Tensors of which several ranks hold the same part with other bits, and the ranks whose bits fewest have; all of them in a tie.

    Every rank must call it. Ranks tell each other one number for each set of parts, and only where those differ one for each tensor.
    """
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        parts[part_name(tensor)][name] = tensor
    sums = {f"{part} {digest(held)}": checksums(held) for part, held in parts.items()}
    totals = ranks.together(
        lambda: {
            part: digest(f"{name} {value}" for name, value in held.items())
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
    told = ranks.together(
        lambda: {
            (part, name): value
            for part in suspected & sums.keys()
            for name, value in sums[part].items()
        }
    )
    found: dict[str, list[int]] = {}
    for part, name in sorted(set().union(*told)):
        odd = fewest(
            {rank: held[part, name] for rank, held in enumerate(told) if (part, name) in held}
        )
        if odd:
            found[name] = sorted({*found.get(name, ()), *odd})
    return found


def part_name(tensor: Any) -> str:
    """Which part of a tensor this rank holds: its place along each axis over which the tensor is split."""
    if not is_split(tensor):
        return "whole"
    mesh, names = tensor.device_mesh, tensor.device_mesh.mesh_dim_names or ()
    place = mesh.get_coordinate()
    return " ".join(
        f"{names[axis]}={place[axis]}"
        for axis, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )


def digest(words: Iterable[str]) -> str:
    """One short text that stands for all the words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def fewest(values: Mapping[int, int]) -> list[int]:
    """The ranks whose value is not the most common one; all where several are equally common, none where there is one value."""
    counts = Counter(values.values()).most_common()
    if len(counts) == 1:
        return []
    is_tie = counts[0][1] == counts[1][1]
    return [rank for rank, value in values.items() if is_tie or value != counts[0][0]]
