"""A batch cut into microbatches: by a number of rows, or so that none holds more tokens than there is room for."""

from collections.abc import Callable, Sequence

from titanrun.config.problems import fail
from titanrun.engines.verl.rows import Data, sequences, setting


def microbatches(
    data: Data, *, most: Callable[[int], int], room: int = 1, least: int = 1
) -> list[list[int]]:
    """The rows of each microbatch. Every data-parallel rank gets as many microbatches.

    Args:
        data: with `use_dynamic_bsz` (verl's default) and `max_token_len_per_gpu`, or with `micro_batch_size_per_gpu`.
        most: the largest of a number over the data-parallel ranks.
        room: how often a rank's tokens fit, as its ranks share rows.
        least: how many microbatches there must be, where there are as many rows.

    Raises a problem where a sequence is longer than the room, rows do not divide, or a rank has too few rows.
    """
    lengths = [len(sequence) for sequence in sequences(data)]
    if not setting(data, "use_dynamic_bsz", True):
        rows = setting(data, "micro_batch_size_per_gpu")
        if rows is None or len(lengths) % rows:
            raise refused(
                f"{len(lengths)} sequences are no multiple of micro_batch_size_per_gpu ({rows})"
            )
        return [list(range(start, start + rows)) for start in range(0, len(lengths), rows)]
    limit = setting(data, "max_token_len_per_gpu")
    if limit is None:
        raise refused(
            "use_dynamic_bsz needs max_token_len_per_gpu",
            help="set it, or use_dynamic_bsz: false with micro_batch_size_per_gpu",
        )
    limit *= room
    if max(lengths) > limit:
        raise refused(
            f"a sequence of {max(lengths)} tokens is longer than max_token_len_per_gpu ({limit})"
        )
    count = most(min(least, len(lengths)))
    while True:
        if most(int(count > len(lengths))):
            raise refused(
                f"{count} microbatches are needed on every rank, and one has fewer sequences"
            )
        cut = filled(lengths, limit, count)
        agreed = most(len(cut))
        if agreed == count:
            return cut
        count = agreed


def filled(lengths: Sequence[int], limit: int, least: int) -> list[list[int]]:
    """Rows dealt to bins, longest first and into the emptiest bin with room; at least `least` bins, none of them empty, each ascending."""
    bins: list[list[int]] = [[] for _ in range(least)]
    used = [0] * least
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        emptiest = min(range(len(bins)), key=lambda place: (used[place], place))
        if used[emptiest] + lengths[row] > limit:
            bins.append([])
            used.append(0)
            emptiest = len(bins) - 1
        bins[emptiest].append(row)
        used[emptiest] += lengths[row]
    return [sorted(rows) for rows in bins]


def refused(message: str, *, help: str | None = None) -> Exception:
    """A problem with a batch of verl."""
    return fail("usage", message, help=help)
