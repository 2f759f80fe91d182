"""Distribution of sequences over the context-parallel ranks: each has chunks of every one.

Shapes: B batch, T tokens of a sequence, t local tokens of a rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class SequenceSharding:
    """Chunks of each sequence by rank. All chunks have the same length.

    With one chunk per rank, the ranks hold the chunks in order. With two, a rank has as many chunks
    before its first as after its second: in causal attention the cost of a token is the number of
    tokens before it, so every rank has the same work.

    Args:
        group: the ranks of the axis cp.
        chunks_per_rank: 1 or 2.
    """

    group: ProcessGroup
    chunks_per_rank: int

    @property
    def cp_size(self) -> int:
        """Number of ranks that share a sequence."""
        return self.group.size()

    @property
    def local_chunks(self) -> list[int]:
        """Indices of this rank's chunks."""
        return self.get_chunks_for_rank(self.group.rank())

    def get_chunks_for_rank(self, rank: int) -> list[int]:
        """Return the indices of a rank's chunks."""
        return [rank, 2 * self.cp_size - 1 - rank][: self.chunks_per_rank]

    def shard_for_rank(self, whole: Tensor, *, rank: int, dim: int) -> Tensor:
        """Return a rank's part of sequences that lie along `dim`."""
        length = whole.size(dim)
        assert length % (self.chunks_per_rank * self.cp_size) == 0, (
            f"sequences of {length:,} tokens for {self.chunks_per_rank * self.cp_size} chunks"
        )
        pieces = whole.chunk(self.chunks_per_rank * self.cp_size, dim)
        return torch.cat([pieces[index] for index in self.get_chunks_for_rank(rank)], dim)

    def shard(self, whole_BT: Tensor) -> Tensor:
        """Return this rank's part [B, t] of sequences."""
        return self.shard_for_rank(whole_BT, rank=self.group.rank(), dim=1)

    def unshard(self, shares: Sequence[Tensor], *, dim: int) -> Tensor:
        """Return whole sequences from the parts of all ranks, given in rank order."""
        pieces = {
            index: piece
            for rank, share in enumerate(shares)
            for index, piece in zip(
                self.get_chunks_for_rank(rank), share.chunk(self.chunks_per_rank, dim), strict=True
            )
        }
        return torch.cat([pieces[index] for index in range(len(pieces))], dim)

    def all_gather(self, share_Bt: Tensor) -> Tensor:
        """All-gather the sequences [B, T, ...], without gradients.

        Collective over cp: all ranks must call this.
        """
        shares = [torch.empty_like(share_Bt) for _ in range(self.cp_size)]
        dist.all_gather(shares, share_Bt.contiguous(), group=self.group)
        return self.unshard(shares, dim=1)
