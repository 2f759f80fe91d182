"""The batch that a language model trains on.

Shapes: N rows, T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORE = -100
"""The label of a position that counts nothing in the loss, as in torch's and Hugging Face's cross entropy."""


def token_ids(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids [N, T+1] in rows of either kind that `TokenBatch.from_rows` takes."""
    return rows if rows.ndim == 2 else rows[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Rows of tokens with the token that follows each of them. Every tensor is [N, T].

    `positions` None means 0 to T-1 in each row. `extra` holds further values of each token by name. `documents` numbers the documents
    of a row, where attention must not cross them.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor | None
    loss_mask: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    documents: Tensor | None = None

    @classmethod
    def from_rows(cls, rows: NDArray[np.int64] | Tensor) -> "TokenBatch":
        """Rows [N, T+1] of a token stream: the first T ids of a row are its inputs, the last T its labels.

        Rows [N, 3, T+1] hold beside the ids which of them count as labels, 0 or 1, and their positions.
        """
        rows = torch.as_tensor(rows)
        rows_NS = rows if rows.ndim == 2 else rows[:, 0]
        inputs_NT, labels_NT = rows_NS[:, :-1].contiguous(), rows_NS[:, 1:].contiguous()
        if rows.ndim == 2:
            return cls(inputs_NT, labels_NT, None, torch.ones_like(labels_NT, dtype=torch.bool))
        return cls(inputs_NT, labels_NT, rows[:, 2, :-1].contiguous(), rows[:, 1, 1:] == 1)

    def to(self, device: torch.device | str) -> "TokenBatch":
        """The same batch on `device`."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def split(self, rows_per_part: int) -> list["TokenBatch"]:
        """Consecutive parts of `rows_per_part` rows; the last one may have fewer."""
        return [self._rows(start, start + rows_per_part) for start in range(0, len(self.tokens), rows_per_part)]

    def shared(self, own_share: Callable[[Tensor], Tensor]) -> "TokenBatch":
        """The batch of some tokens of each row, with their positions in it. Labels need no neighbour: each is with its token.

        `documents` stay those of whole rows: attention sees these.
        """
        positions = torch.arange(self.tokens.size(1), device=self.tokens.device).expand_as(self.tokens)
        written_out = positions if self.positions is None else self.positions
        share = replace(self, positions=written_out, documents=None)._with_each(own_share)
        return replace(share, documents=self.documents)

    def valid_mask(self) -> Tensor:
        """Which labels count in the loss, [N, T] bool."""
        return (self.labels != IGNORE) & self.loss_mask

    def valid_count(self) -> Tensor:
        """How many labels count in the loss, one int64 on the batch's device."""
        return self.valid_mask().sum()

    def columns(self, start: int, end: int) -> "TokenBatch":
        """The tokens of each row from number `start` up to `end`, with their labels."""
        return replace(self, documents=None)._with_each(lambda tensor: tensor[:, start:end])

    def _rows(self, start: int, end: int) -> "TokenBatch":
        return self._with_each(lambda tensor: tensor[start:end])

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "TokenBatch":
        positions = None if self.positions is None else change(self.positions)
        extra = {name: change(tensor) for name, tensor in self.extra.items()}
        documents = None if self.documents is None else change(self.documents)
        return TokenBatch(change(self.tokens), change(self.labels), positions, change(self.loss_mask), extra, documents)
