"""Several documents in one row, so that little of a row is padding."""

from collections import defaultdict
from collections.abc import Callable, Sequence

Members = list[list[int]]
"""For each row the numbers of what it holds."""


def one_each(lengths: Sequence[int], *, row_length: int) -> Members:
    """One in each row."""
    return [[number] for number in range(len(lengths))]


def best_fit(lengths: Sequence[int], *, row_length: int) -> Members:
    """Longest first, each into the row that it leaves least room in; at most 11/9 of the rows that the best packing takes, and one.

    Best fit decreasing (D. S. Johnson, Near-optimal bin packing algorithms, 1973). The same for the same lengths, none of which is
    longer than a row.
    """
    members: Members = []
    rows_by_room: dict[int, list[int]] = defaultdict(list)
    # bit r is set where a row has room for r more, so that the smallest that is large enough is found by one shift
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
            room, row = row_length, len(members)
            members.append([])
        members[row].append(number)
        rows_by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return members


PACKINGS: dict[str | None, Callable[..., Members]] = {None: one_each, "best_fit": best_fit}
