"""Attention masks, described once for every back end.

Shapes: B batch, S queries at the end of a sequence, T keys of the sequence, M documents of a
sequence at most.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CausalMask:
    """Mask of a query, which sees itself and earlier keys within each limit that is set.

    Args:
        separates_documents: whether a query sees only keys of its own document.
        window: maximum number of keys, including the query's own.
        block: block size. A query sees only keys of its own block of the sequence.
    """

    separates_documents: bool = False
    window: int | None = None
    block: int | None = None

    def allows_attention(
        self, row: Tensor, query: Tensor, key: Tensor, documents_BT: Tensor | None
    ) -> Tensor:
        """Return whether queries see keys, as bools in the broadcast shape of their positions."""
        is_visible = key <= query
        if self.window is not None:
            is_visible = is_visible & (query - key < self.window)
        if self.block is not None:
            is_visible = is_visible & (query // self.block == key // self.block)
        if documents_BT is not None and self.separates_documents:
            is_visible = is_visible & (documents_BT[row, query] == documents_BT[row, key])
        return is_visible

    def is_plain_causal(self, num_keys: int, documents_BT: Tensor | None) -> bool:
        """Return whether no limit applies except causality, for `num_keys` keys."""
        is_whole = documents_BT is None or not self.separates_documents
        return is_whole and all(
            limit is None or limit >= num_keys for limit in (self.window, self.block)
        )

    def to_dense(
        self, num_queries: int, num_keys: int, documents_BT: Tensor | None, *, device: torch.device
    ) -> Tensor:
        """Return bools [B or 1, 1, S, T]: the keys that the last `num_queries` tokens see."""
        rows = 1 if documents_BT is None or not self.separates_documents else documents_BT.size(0)
        row_B11 = torch.arange(rows, device=device).view(-1, 1, 1)
        query_S1 = torch.arange(num_keys - num_queries, num_keys, device=device).unsqueeze(1)
        key_T = torch.arange(num_keys, device=device)
        return (
            self.allows_attention(row_B11, query_S1, key_T, documents_BT)
            .expand(rows, num_queries, num_keys)
            .unsqueeze(1)
        )

    def compute_segment_starts(
        self, batch_size: int, num_keys: int, documents_BT: Tensor | None, *, device: torch.device
    ) -> Tensor:
        """Return bools [B, T]: starts of segments that see nothing before them.

        Documents and blocks start segments.
        """
        first_BT = torch.zeros(batch_size, num_keys, dtype=torch.bool, device=device)
        first_BT[:, 0] = True
        if self.block is not None:
            first_BT[:, :: self.block] = True
        if documents_BT is not None and self.separates_documents:
            first_BT[:, 1:] |= documents_BT.diff(dim=1) != 0
        return first_BT

    def join_segments(self, document_starts_BM: Tensor, num_keys: int) -> Tensor:
        """Return the ends of all sequences' segments, one after the other, without a host wait.

        Repeated ends are empty segments. The first is 0, the last B * T, both in int32.

        Args:
            document_starts_BM: columns at which documents start, padded with T.
            num_keys: T, number of keys of each sequence.
        """
        starts_BM = document_starts_BM
        if not self.separates_documents:
            starts_BM = torch.zeros_like(starts_BM[:, :1])
        rows_B1 = torch.arange(starts_BM.size(0), device=starts_BM.device).unsqueeze(1)
        if self.block is not None:
            blocks = torch.arange(0, num_keys, self.block, device=starts_BM.device)
            both_BM = torch.cat([starts_BM, blocks.expand(starts_BM.size(0), -1)], dim=1)
            starts_BM = both_BM.sort(dim=1).values
        ends_X = (starts_BM + rows_B1 * num_keys).flatten()
        last = torch.full_like(ends_X[:1], starts_BM.size(0) * num_keys)
        return torch.cat([ends_X, last]).to(torch.int32)
