"""Summaries of datasets for people: documents, padding, loss tokens and samples."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.document_pieces import (
    DocumentPiece,
    SplitDocument,
    hash_ids,
    locate_pieces,
)
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.reply_ends import ReplyEnds
from titanrun.components.data.sample_order import FirstEpochView, view_first_epoch
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

MAX_SUMMARIZED_SAMPLES = 50_000
"""Maximum number of samples to summarize, the first ones."""


@dataclass(slots=True)
class DataSummary:
    """Statistics of the samples of a dataset.

    `document_digests` identify documents. `document_lengths` are in tokens. Replies are counted if
    their end tokens are known.
    """

    num_samples: int
    num_tokens: int = 0
    num_nonpadding_tokens: int = 0
    num_loss_tokens: int = 0
    document_lengths: list[int] = field(default_factory=list)
    document_digests: list[bytes] = field(default_factory=list)
    num_replies: int = 0
    num_replies_without_end: int = 0
    loss_tokens_per_sample: list[int] = field(default_factory=list)


def summarize_dataset(
    dataset: IndexedDataset, *, eos_id: int | None, reply_ends: ReplyEnds | None = None
) -> DataSummary:
    """Summarize the samples of an epoch, or the first MAX_SUMMARIZED_SAMPLES.

    Documents are separated by positions, or else by end-of-text tokens. Those of samples that the
    epoch reads again count once.
    """
    dataset = view_first_epoch(dataset)
    found = DataSummary(num_samples=min(len(dataset), MAX_SUMMARIZED_SAMPLES))
    rest: list[NDArray[np.int64]] = []
    split = defaultdict[Hashable, SplitDocument](SplitDocument)
    for index, is_repeated in iter_sorted_positions(dataset, found.num_samples):
        row = dataset[index]
        found.num_tokens += row.shape[-1]
        found.num_nonpadding_tokens += count_nonpadding_tokens(row)
        found.loss_tokens_per_sample.append(
            int(row[1, 1:].sum()) if row.ndim == 2 else len(row) - 1
        )
        if is_repeated:
            continue
        if row.ndim == 2:
            add_sample_documents(found, split, row, locate_pieces(dataset, index))
            for start, end in iter_document_spans(row):
                for _, is_ended in find_reply_ends(reply_ends, row, start, end):
                    found.num_replies += 1
                    found.num_replies_without_end += not is_ended
            continue
        ends = (
            np.flatnonzero(row == eos_id) + 1 if eos_id is not None else np.zeros(0, dtype=np.int64)
        )
        *whole, last = np.split(row, ends)
        for part in whole:
            add_document(found, np.concatenate([*rest, part]))
            rest = []
        if len(last):
            rest.append(last)
    if rest:
        add_document(found, np.concatenate(rest))
    for document in split.values():
        found.document_lengths.append(document.length)
        found.document_digests.append(document.finish())
    found.num_loss_tokens = sum(found.loss_tokens_per_sample)
    return found


def iter_sorted_positions(dataset: IndexedDataset, count: int) -> Iterator[tuple[int, bool]]:
    """Yield the first `count` positions, source by source, and whether their sample was there.

    An epoch of a mixture may read the samples of a source more than once.
    """
    if not isinstance(dataset, FirstEpochView):
        yield from ((index, False) for index in range(count))
        return
    order = dataset.indices[:count]
    before = None
    for position in np.argsort(order, kind="stable"):
        yield int(position), before == order[position]
        before = order[position]


def count_nonpadding_tokens(sample: NDArray[np.int64]) -> int:
    """Return the tokens of the documents of a sample."""
    if sample.ndim == 1:
        return len(sample)
    return sum(end - start for start, end in iter_document_spans(sample))


def add_sample_documents(
    summary: DataSummary,
    split: defaultdict[Hashable, SplitDocument],
    sample: NDArray[np.int64],
    pieces: Iterable[DocumentPiece] | None,
) -> None:
    """Add the documents of a sample with channels, the split ones to `split`."""
    known = iter(pieces or ())
    for start, end in iter_document_spans(sample):
        ids, piece = sample[0, start:end], next(known, None)
        if piece is None or piece.is_whole:
            add_document(summary, ids)
        else:
            split[piece.document].add(piece.offset, ids)


def add_document(summary: DataSummary, ids: NDArray[np.int64]) -> None:
    """Add a document to the summary."""
    summary.document_lengths.append(len(ids))
    summary.document_digests.append(hash_ids(ids))


def iter_document_spans(sample: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each document of a sample with channels, without padding."""
    ids, counts, positions = sample[:3]
    starts = [0, *(np.flatnonzero(positions[1:] <= positions[:-1]) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        if end < len(ids) or ids[start:end].any() or counts[start:end].any():
            yield start, end


def find_reply_ends(
    reply_ends: ReplyEnds | None, sample: NDArray[np.int64], start: int, end: int
) -> Iterator[tuple[int, bool]]:
    """Yield the ends of the replies of one document of a sample, as `ReplyEnds.iter_ends` does."""
    found = () if reply_ends is None else reply_ends.iter_ends(*sample[:2, start:end])
    return ((start + offset, is_ended) for offset, is_ended in found)


def label_text_segments(
    sample: NDArray[np.int64],
    tokenizer: Tokenizer | None,
    reply_ends: ReplyEnds | None = None,
    *,
    has_labels: bool = False,
) -> list[tuple[str, str]]:
    """Return the text of a sample in segments, each with its kind.

    Kinds: "counted" (labels in the loss), "context", "weight" (the loss weight of the counted text
    before it, if tokens have weights), "label" (of the reply before it, with `has_labels`: then the
    values of tokens are labels instead of weights), "unended" (the reply before it trains no end of
    its turn), "end" (of a document) and "filled" (the number of padding tokens). Without a
    tokenizer, the text shows the ids. Special tokens are shown.
    """
    if sample.ndim == 1:
        return [
            ("context", decode_with_special_tokens(sample[:1], tokenizer)),
            ("counted", decode_with_special_tokens(sample[1:], tokenizer)),
        ]
    found: list[tuple[str, str]] = []
    ids, counts = sample[:2]
    # tokens in the loss are grouped by weight
    kinds = sample[3] * counts if len(sample) == 4 and not has_labels else counts
    ended = 0
    for start, end in iter_document_spans(sample):
        unended = {
            place
            for place, is_ended in find_reply_ends(reply_ends, sample, start, end)
            if not is_ended
        }
        changes = [start, *(start + 1 + np.flatnonzero(np.diff(kinds[start:end]))).tolist(), end]
        for first, last in pairwise(changes):
            found.append(
                (
                    "counted" if counts[first] else "context",
                    decode_with_special_tokens(ids[first:last], tokenizer),
                )
            )
            if has_labels and counts[first]:
                found.append(("label", "desirable" if sample[3, first] else "undesirable"))
            elif len(sample) == 4 and counts[first]:
                found.append(("weight", f"{sample[3, first].astype(np.int32).view(np.float32):g}"))
            if last in unended:
                found.append(("unended", ""))
        found.append(("end", ""))
        ended = end
    if ended < len(ids):
        found.append(("filled", str(len(ids) - ended)))
    return found


def decode_with_special_tokens(ids: NDArray[np.int64], tokenizer: Tokenizer | None) -> str:
    """Return the text of ids, with special tokens, which have no text, as they are written."""
    if tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    text, plain = "", list[int]()
    for token_id in ids.tolist():
        if tokenizer.decode([token_id]):
            plain.append(token_id)
            continue
        text += tokenizer.decode(plain) + format_special_token(token_id, tokenizer)
        plain = []
    return text + tokenizer.decode(plain)


def format_special_token(token_id: int, tokenizer: Tokenizer) -> str:
    """Return the text that represents a special token: its own, if the tokenizer knows it."""
    find = getattr(tokenizer, "get_token_text", None)
    if find is not None and (text := find(token_id)):
        return str(text)
    names = {tokenizer.bos_id: "begin of text", tokenizer.eos_id: "end of text"}
    return f"<{names.get(token_id, f'token {token_id}')}>"
