"""Data loader of a rank in one of several replica groups, whose share changes between steps."""

from collections.abc import Iterator, Sequence
from typing import Any

from titanrun.components.data.dataloader import DistributedDataLoader


class DealtDataLoader(DistributedDataLoader):
    """Loader of the pieces of each global batch that this rank's group was dealt.

    A piece is one forward pass of all data-parallel ranks of a group, so a global batch has
    `num_pieces`, and depends neither on the number of groups nor on how they share it.

    Args:
        piece_size: sequences of a piece.
        options: the arguments of `DistributedDataLoader`, for the rank in its group.
    """

    def __init__(self, *arguments: Any, piece_size: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.global_batch_size % piece_size == 0, "a rule checks it"
        dp_size = self.global_batch_size // self._local_batch_size
        self.num_pieces = self.global_batch_size // piece_size
        self._piece_size, self._rank_size = piece_size, piece_size // dp_size
        self._rank_start = self._local_start // self._local_batch_size * self._rank_size
        self._pieces: Sequence[int] = range(self.num_pieces)

    def deal(self, group_index: int, num_groups: int) -> Sequence[int]:
        """Set which of the groups that take part in the next step this one is.

        Return the numbers of its pieces.
        """
        self._pieces = range(group_index, self.num_pieces, num_groups)
        return self._pieces

    def _iter_epoch_indices(self, position: int) -> Iterator[tuple[int, int]]:
        for piece in self._pieces:
            start = position + piece * self._piece_size + self._rank_start
            yield from self._iter_range(start, start + self._rank_size)
