"""Labels for multi-token prediction (https://arxiv.org/abs/2412.19437, section 2.2).

Shapes: N sequences, T tokens of a sequence, K tokens predicted after the next one.
"""

from dataclasses import replace

import torch
from torch import Tensor

from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch

MTP_TOKENS_KEY, MTP_LABELS_KEY = "further_tokens_{}", "further_labels_{}"
"""Keys in a batch's `extra` for each depth from 1: the token at that offset, and its label."""


def attach_mtp_labels(batch: TokenBatch, depth: int) -> TokenBatch:
    """Add the next 1 to `depth` tokens and labels of each token to the batch.

    Nothing crosses the end of a sequence or of a document: there the token is 0, and the label does
    not count. The batch must hold whole sequences. Ranks may shard them afterwards, since each
    token carries its own labels.
    """
    extra = {}
    for places in range(1, depth + 1):
        is_there = mask_same_document(batch, places)
        extra[MTP_TOKENS_KEY.format(places)] = shift_left(batch.tokens, places).masked_fill(
            ~is_there, 0
        )
        counts = is_there & shift_left(batch.label_mask(), places)
        extra[MTP_LABELS_KEY.format(places)] = shift_left(batch.labels, places).masked_fill(
            ~counts, IGNORE_INDEX
        )
    return replace(batch, extra=batch.extra | extra)


def stack_mtp_tokens(batch: TokenBatch, depth: int) -> Tensor:
    """Return the tokens 1 to `depth` positions ahead, [K, N, T]."""
    return torch.stack(
        [batch.extra[MTP_TOKENS_KEY.format(places)] for places in range(1, depth + 1)]
    )


def select_mtp_labels(batch: TokenBatch, offset: int) -> TokenBatch:
    """Return the batch with the labels `offset` positions further ahead."""
    labels = batch.extra[MTP_LABELS_KEY.format(offset)]
    return replace(batch, labels=labels, loss_mask=labels != IGNORE_INDEX)


def shift_left(value_NT: Tensor, offset: int) -> Tensor:
    """Shift values `offset` positions to the left, circularly within each sequence."""
    return value_NT.roll(-offset, dims=1)


def mask_same_document(batch: TokenBatch, offset: int) -> Tensor:
    """Return whether the token `offset` positions ahead is in the same document, [N, T] bool.

    Tokens beyond the end of the sequence are not.
    """
    width = batch.tokens.size(1)
    is_there = (torch.arange(width, device=batch.tokens.device) < width - offset).expand_as(
        batch.tokens
    )
    documents = batch.document_ids
    return (
        is_there if documents is None else is_there & (shift_left(documents, offset) == documents)
    )
