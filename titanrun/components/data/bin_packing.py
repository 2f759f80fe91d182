"""Algorithms that pack documents into sequences with little padding."""

from collections import defaultdict
from collections.abc import Callable, Sequence

Bins = list[list[int]]
"""For each sequence, the indices of the documents in it."""


def pack_one_each(lengths: Sequence[int], *, sample_length: int) -> Bins:
    """Put each document into its own sequence."""
    return [[number] for number in range(len(lengths))]


def pack_best_fit(lengths: Sequence[int], *, sample_length: int) -> Bins:
    """Pack documents by best fit decreasing.

    The longest documents go first, each into the sequence that it leaves the least space in. Uses
    at most 11/9 of the number of sequences of the optimal packing, plus one (D. S. Johnson,
    Near-optimal bin packing algorithms, 1973). Deterministic for equal lengths. No length may
    exceed `sample_length`.
    """
    members: Bins = []
    rows_by_room: dict[int, list[int]] = defaultdict(list)
    # bit r is set if a sequence has space for r more tokens: one shift finds the smallest that fits
    rooms = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = sample_length, len(members)
            members.append([])
        members[row].append(number)
        rows_by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return members


PACKERS: dict[str | None, Callable[..., Bins]] = {None: pack_one_each, "best_fit": pack_best_fit}
