"""Attention masks: which keys of its row a query may see, described once for every back end.

Shapes: B batch, S queries at the end of a row, T keys of the row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mask:
    """A query sees itself and earlier keys of its row, within each limit that is set.

    Args:
        documents: only keys of its own document.
        window: only the last so many keys, itself among them.
        block: only keys of its own block, where a row is cut into blocks of so many tokens.
    """

    documents: bool = False
    window: int | None = None
    block: int | None = None

    def sees(self, row: Tensor, query: Tensor, key: Tensor, documents_BT: Tensor | None) -> Tensor:
        """Whether the query at that place of a row sees the key at that place: bools in the shape that the places make together."""
        seen = key <= query
        if self.window is not None:
            seen = seen & (query - key < self.window)
        if self.block is not None:
            seen = seen & (query // self.block == key // self.block)
        if documents_BT is not None and self.documents:
            seen = seen & (documents_BT[row, query] == documents_BT[row, key])
        return seen

    def is_causal(self, keys: int, documents_BT: Tensor | None) -> bool:
        """Whether no limit but the order of tokens holds in rows of so many."""
        is_whole = documents_BT is None or not self.documents
        return is_whole and all(
            limit is None or limit >= keys for limit in (self.window, self.block)
        )

    def written_out(
        self, queries: int, keys: int, documents_BT: Tensor | None, *, device: torch.device
    ) -> Tensor:
        """Bools [B or 1, 1, S, T]: which keys the last `queries` tokens of a row see."""
        rows = 1 if documents_BT is None or not self.documents else documents_BT.size(0)
        row_B11 = torch.arange(rows, device=device).view(-1, 1, 1)
        query_S1 = torch.arange(keys - queries, keys, device=device).unsqueeze(1)
        key_T = torch.arange(keys, device=device)
        return (
            self.sees(row_B11, query_S1, key_T, documents_BT)
            .expand(rows, queries, keys)
            .unsqueeze(1)
        )

    def segments(
        self, rows: int, keys: int, documents_BT: Tensor | None, *, device: torch.device
    ) -> Tensor:
        """Bools [B, T]: where a stretch of the row begins that sees nothing before it, by its documents and blocks."""
        first_BT = torch.zeros(rows, keys, dtype=torch.bool, device=device)
        first_BT[:, 0] = True
        if self.block is not None:
            first_BT[:, :: self.block] = True
        if documents_BT is not None and self.documents:
            first_BT[:, 1:] |= documents_BT.diff(dim=1) != 0
        return first_BT
