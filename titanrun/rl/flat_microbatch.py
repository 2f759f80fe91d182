"""Flat microbatches of torchtitan's RL trainer: documents one after the other in one dimension.

torchtitan is not imported: any object with these six fields is one.

Shapes: N sequences, here one; T tokens.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch


class FlatMicrobatch(Protocol):
    """Tensors [T] of packed documents, whose positions start again at 0."""

    token_ids: Any
    labels: Any
    positions: Any
    generator_logprobs: Any
    loss_mask: Any
    advantages: Any


def to_token_batch(microbatch: FlatMicrobatch) -> TokenBatch:
    """Return a flat microbatch as a batch of one sequence.

    Documents are told apart by their positions. Every token with a loss counts the same.
    """

    def to_row(values: Any, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values).to(dtype).reshape(1, -1)

    positions_NT = to_row(microbatch.positions, torch.long)
    loss_mask_NT = to_row(microbatch.loss_mask, torch.bool)
    documents_NT = (positions_NT == 0).long().cumsum(-1) - 1
    return TokenBatch(
        tokens=to_row(microbatch.token_ids, torch.long),
        labels=to_row(microbatch.labels, torch.long),
        positions=positions_NT,
        loss_mask=loss_mask_NT,
        extra={
            "logprobs": to_row(microbatch.generator_logprobs, torch.float32),
            "advantages": to_row(microbatch.advantages, torch.float32),
            "weight": torch.ones_like(loss_mask_NT, dtype=torch.float32),
            "sequences": documents_NT,
        },
        document_ids=documents_NT,
    )
