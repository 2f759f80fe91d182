"""Statistics of a dataset, for those who look at data before a run."""

from collections.abc import Mapping
from typing import Any

from titanrun.components.data.data_inspection import DataSummary
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.sample_order import get_epoch_size
from titanrun.components.data.stream_preview import StreamPreview


def build_data_summary(
    section: str, opened: Mapping[str, IndexedDataset], looks: Mapping[str, DataSummary]
) -> dict[str, Any]:
    """Return statistics of a dataset, with the number of documents shared with training.

    Those of training are compared as far as they were inspected: `training_looked_at` sequences,
    None if that is all. What is left out or cut is not counted in a stream: None. So are duplicates
    in a batch that reads data twice.
    """
    rows, data_summary, train_summary = opened[section], looks[section], looks.get("training")
    is_stream = isinstance(rows, StreamPreview)
    shared, training_looked_at = None, None
    if train_summary is not None and train_summary is not data_summary:
        shared = len(set(data_summary.document_digests) & set(train_summary.document_digests))
        if is_partly_inspected(opened["training"], train_summary):
            training_looked_at = train_summary.num_samples
    return {
        "rows": get_epoch_size(rows),
        "is_stream": is_stream,
        "looked_at": data_summary.num_samples,
        "training_looked_at": training_looked_at,
        "row_length": data_summary.num_tokens // max(1, data_summary.num_samples),
        "documents": len(data_summary.document_lengths),
        "longest": max(data_summary.document_lengths, default=0),
        "filled": data_summary.num_nonpadding_tokens / max(1, data_summary.num_tokens),
        "counted": data_summary.num_loss_tokens
        / max(1, data_summary.num_tokens - data_summary.num_samples),
        "without_labels": data_summary.loss_tokens_per_sample.count(0),
        "duplicates": None
        if isinstance(rows, StreamPreview) and rows.is_repeated
        else len(data_summary.document_digests) - len(set(data_summary.document_digests)),
        "in_training": shared,
        "replies": data_summary.num_replies,
        "without_end": data_summary.num_replies_without_end,
        "left_out": None if is_stream else getattr(rows, "num_dropped", 0),
        "cut": None if is_stream else getattr(rows, "num_truncated", 0),
    }


def is_partly_inspected(rows: IndexedDataset, summary: DataSummary) -> bool:
    """Return whether a dataset has more sequences than the summary is of."""
    return isinstance(rows, StreamPreview) or summary.num_samples < get_epoch_size(rows)
