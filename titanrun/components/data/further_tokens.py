"""The tokens after the next one, for models that predict several (https://arxiv.org/abs/2412.19437, section 2.2).

Shapes: N rows, T tokens of a row, K further tokens.
"""

from dataclasses import replace

import torch
from torch import Tensor

from titanrun.components.data.batch import IGNORE, TokenBatch

TOKENS, LABELS = "further_tokens_{}", "further_labels_{}"
"""In a batch's `extra`, for each depth from 1: the token so many places on, and the label there."""


def with_further_tokens(batch: TokenBatch, depth: int) -> TokenBatch:
    """The batch of whole rows that tells each token what comes 1 to `depth` places on.

    Nothing is told across the end of a row or of a document: the token is 0 there, and the label does not count. Ranks may share the
    rows afterwards, since each token has what it needs with it.
    """
    told = {}
    for places in range(1, depth + 1):
        is_there = inside(batch, places)
        told[TOKENS.format(places)] = ahead(batch.tokens, places).masked_fill(~is_there, 0)
        counts = is_there & ahead(batch.valid_mask(), places)
        told[LABELS.format(places)] = ahead(batch.labels, places).masked_fill(~counts, IGNORE)
    return replace(batch, extra=batch.extra | told)


def further_tokens(batch: TokenBatch, depth: int) -> Tensor:
    """The tokens 1 to `depth` places on, [K, N, T]."""
    return torch.stack([batch.extra[TOKENS.format(places)] for places in range(1, depth + 1)])


def with_labels_of(batch: TokenBatch, places: int) -> TokenBatch:
    """The batch whose labels are those so many places on."""
    labels = batch.extra[LABELS.format(places)]
    return replace(batch, labels=labels, loss_mask=labels != IGNORE)


def ahead(value_NT: Tensor, places: int) -> Tensor:
    """What stands so many places on; at the end of a row what stands at its beginning."""
    return value_NT.roll(-places, dims=1)


def inside(batch: TokenBatch, places: int) -> Tensor:
    """Whether the token so many places on is of the same row and document, [N, T] bool."""
    width = batch.tokens.size(1)
    is_there = (torch.arange(width, device=batch.tokens.device) < width - places).expand_as(
        batch.tokens
    )
    documents = batch.documents
    return is_there if documents is None else is_there & (ahead(documents, places) == documents)
