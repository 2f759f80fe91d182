"""How the ranks of the axis cp share rows: each has a few pieces of every row.

Shapes: B rows, T tokens of a row, t tokens of a rank's share of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class RowSharing:
    """Which pieces of each row each rank has; all pieces are equally long.

    With one piece each, the ranks have them in order. With two, a rank has as many before its first as after its second: in causal
    attention a token costs as much as there are tokens before it, and so every rank has the same work.

    Args:
        group: the ranks of the axis cp.
        pieces: of a rank, 1 or 2.
    """

    group: ProcessGroup
    pieces: int

    @property
    def ranks(self) -> int:
        """How many ranks share a row."""
        return self.group.size()

    @property
    def own_pieces(self) -> list[int]:
        """Which pieces of a row this rank has."""
        return self.pieces_of(self.group.rank())

    def pieces_of(self, rank: int) -> list[int]:
        """Which pieces of a row a rank has."""
        return [rank, 2 * self.ranks - 1 - rank][: self.pieces]

    def share(self, whole: Tensor, *, rank: int, dim: int) -> Tensor:
        """What a rank has of rows that lie along `dim`."""
        length = whole.size(dim)
        assert length % (self.pieces * self.ranks) == 0, (
            f"rows of {length} tokens for {self.pieces * self.ranks} pieces"
        )
        pieces = whole.chunk(self.pieces * self.ranks, dim)
        return torch.cat([pieces[index] for index in self.pieces_of(rank)], dim)

    def own_share(self, whole_BT: Tensor) -> Tensor:
        """This rank's share [B, t] of rows."""
        return self.share(whole_BT, rank=self.group.rank(), dim=1)

    def in_order(self, shares: Sequence[Tensor], *, dim: int) -> Tensor:
        """The rows of which each rank, one after the other, has a share."""
        pieces = {
            index: piece
            for rank, share in enumerate(shares)
            for index, piece in zip(
                self.pieces_of(rank), share.chunk(self.pieces, dim), strict=True
            )
        }
        return torch.cat([pieces[index] for index in range(len(pieces))], dim)

    def gathered(self, share_Bt: Tensor) -> Tensor:
        """The rows [B, T, ...] on every rank, without gradients."""
        shares = [torch.empty_like(share_Bt) for _ in range(self.ranks)]
        dist.all_gather(shares, share_Bt.contiguous(), group=self.group)
        return self.in_order(shares, dim=1)
