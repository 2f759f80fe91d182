"""Where the documents of a row begin, for attention that must not cross them.

Shapes: N rows, T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from titanrun.components.data.batch import TokenBatch
from titanrun.config.problems import fail

Marking = Callable[[TokenBatch], TokenBatch]
SOURCE = ("model", "attention", "documents")


def unmarked(batch: TokenBatch) -> TokenBatch:
    """Each row is one document."""
    return batch


def marked_by_positions(batch: TokenBatch) -> TokenBatch:
    """The batch with its documents numbered: one begins wherever a position is not the next after the one before it.

    Those that are numbered already stay.
    """
    if batch.positions is None or batch.documents is not None:
        return batch
    return replace(batch, documents=numbered(batch.positions.diff(dim=1) != 1))


def marked_by_ends(batch: TokenBatch, *, eos_id: int) -> TokenBatch:
    """The batch with its documents numbered: one begins after each end-of-text token, which belongs to the document it ends.

    Raises ProblemsFound where the batch tells documents by its positions as well.
    """
    if batch.positions is not None and bool((batch.positions.diff(dim=1) != 1).any()):
        message = "the data tells documents by positions that start anew, and the recipe by end-of-text tokens"
        raise fail(
            "conflict", message, path=SOURCE, help="set model.attention.documents: positions"
        )
    return replace(batch, documents=numbered(batch.tokens[:, :-1] == eos_id))


def numbered(begins_after: Tensor) -> Tensor:
    """Numbers of documents [N, T], from whether one begins after each token but the last, [N, T - 1]."""
    first = torch.zeros_like(begins_after[:, :1])
    return torch.cat([first, begins_after], dim=1).cumsum(dim=1)


def marking(source: str | None, *, eos_id: int | None) -> Marking:
    """What numbers the documents of a batch, by the source that the recipe names.

    Raises ProblemsFound where that is a token that the tokenizer does not have.
    """
    if source is None:
        return unmarked
    if source == "positions":
        return marked_by_positions
    if eos_id is None:
        message = "documents end with an end-of-text token, and the tokenizer has none"
        raise fail(
            "conflict",
            message,
            path=SOURCE,
            help="give the tokenizer an eos_token, or set model.attention.mask: causal",
        )
    return partial(marked_by_ends, eos_id=eos_id)
