"""Splitting of a batch into microbatches by sequence count or token limit."""

from collections.abc import Callable, Sequence

from titanrun.config.problems import problem_error
from titanrun.integrations.verl.verl_sequences import VerlBatch, get_batch_setting, get_sequences


def split_into_microbatches(
    data: VerlBatch,
    *,
    all_reduce_max: Callable[[int], int],
    tp_size: int = 1,
    min_microbatches: int = 1,
) -> list[list[int]]:
    """Return the sequence indices of each microbatch, equally many on all ranks.

    Args:
        data: with `use_dynamic_bsz` (verl's default) and `max_token_len_per_gpu`, or with
            `micro_batch_size_per_gpu`.
        all_reduce_max: returns the maximum of a number over the data-parallel ranks.
        tp_size: factor of the token limit, because tensor-parallel ranks share sequences.
        min_microbatches: smallest number of microbatches, if there are enough sequences.

    Raises:
        ProblemsFound: a sequence is longer than the limit, the sequences are not divisible, or a
            rank has too few sequences.
    """
    lengths = [len(sequence) for sequence in get_sequences(data)]
    if not get_batch_setting(data, "use_dynamic_bsz", True):
        size = get_batch_setting(data, "micro_batch_size_per_gpu")
        if size is None or len(lengths) % size:
            raise build_batch_error(
                f"{len(lengths):,} sequences are not divisible by micro_batch_size_per_gpu ({size})"
            )
        return [list(range(start, start + size)) for start in range(0, len(lengths), size)]
    limit = get_batch_setting(data, "max_token_len_per_gpu")
    if limit is None:
        raise build_batch_error(
            "use_dynamic_bsz needs max_token_len_per_gpu",
            hint="set it, or use_dynamic_bsz: false with micro_batch_size_per_gpu",
        )
    limit *= tp_size
    if max(lengths) > limit:
        raise build_batch_error(
            f"a sequence of {max(lengths):,} tokens exceeds max_token_len_per_gpu ({limit:,})"
        )
    count = all_reduce_max(min(min_microbatches, len(lengths)))
    while True:
        if all_reduce_max(int(count > len(lengths))):
            raise build_batch_error(
                f"{count} microbatches are needed on every rank, but one has fewer sequences"
            )
        microbatches = pack_microbatches(lengths, limit, count)
        largest_count = all_reduce_max(len(microbatches))
        if largest_count == count:
            return microbatches
        count = largest_count


def pack_microbatches(
    lengths: Sequence[int], max_tokens: int, min_microbatches: int
) -> list[list[int]]:
    """Pack sequences into at least `min_microbatches` bins and return their ascending indices.

    The longest sequences come first, each into the emptiest bin if it fits. No bin is empty.
    """
    bins: list[list[int]] = [[] for _ in range(min_microbatches)]
    used = [0] * min_microbatches
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        emptiest = min(range(len(bins)), key=lambda number: (used[number], number))
        if used[emptiest] + lengths[index] > max_tokens:
            bins.append([])
            used.append(0)
            emptiest = len(bins) - 1
        bins[emptiest].append(index)
        used[emptiest] += lengths[index]
    return [sorted(indices) for indices in bins]


def build_batch_error(message: str, *, hint: str | None = None) -> Exception:
    """Build the problem of a verl batch."""
    return problem_error("usage", message, hint=hint)
