"""Sequences of several datasets in given shares."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import DatasetConfig, MixtureDatasetConfig, MixtureSource
from titanrun.components.data.document_pieces import DocumentPiece, locate_pieces
from titanrun.components.data.document_split import HeldOutDataTooSmall, Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.mixture_counts import (
    MixtureCounts,
    compute_samples_per_source,
    compute_source_limit,
    interleave_sources,
)
from titanrun.components.data.sample_order import (
    OrderedDataset,
    SampleOrder,
    get_epoch_size,
    get_total_size,
    shuffle_order,
    view_first_epoch,
)
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)

OpenStream = Callable[[DatasetConfig], IndexedDataset]
"""Function that opens sequences of a stream by their numbers."""
WEIGHT_ONE_BITS = int(np.float32(1).view(np.int32))
"""Bits of the number 1, as samples hold weights."""


class MixtureDataset:
    """The sequences of several datasets, those of the first one first.

    Each epoch reads a given number of sequences of each source, spread as evenly as possible. A
    source goes on where the last epoch of the mixture ended, through epochs of its own: it reads
    each of its sequences once before it reads one again, in an order of its own each time.

    If some source has channels, sequences without them become one document in which everything
    counts, and sequences without weights have weight 1.

    Args:
        sources: Datasets.
        num_used: Number of sequences of each source that are used, the first ones.
        counts: Number of sequences of each source in the epochs of the mixture.
        share_lines: Lines for the log about the share of each source.
    """

    def __init__(
        self,
        sources: Sequence[IndexedDataset],
        num_used: Sequence[int],
        counts: MixtureCounts,
        share_lines: Sequence[str] = (),
    ) -> None:
        self.share_lines = tuple(share_lines)
        self._sources, self._num_used, self._counts = tuple(sources), tuple(num_used), counts
        self.epoch_size, self.total_size = counts.epoch_size, counts.total_size
        self._ends = np.cumsum([len(rows) for rows in sources])
        self._orders: dict[int, tuple[tuple[int, int | None], SampleOrder]] = {}
        self._num_channels = max(len(rows[0]) if rows[0].ndim == 2 else 1 for rows in sources)
        self.max_token_id = max(rows.max_token_id for rows in sources)
        described = [
            [rows.fingerprint for rows in sources],
            list(num_used),
            [[one.first_epoch, one.counts] for one in counts.stretches],
        ]
        self.fingerprint = hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        source = self.get_source_index(index)
        rows = self._sources[source]
        row = rows[index - int(self._ends[source]) + len(rows)]
        return (
            row
            if self._num_channels == 1 or (row.ndim == 2 and len(row) == self._num_channels)
            else add_missing_channels(row, self._num_channels)
        )

    def locate_pieces(self, index: int) -> list[DocumentPiece] | None:
        """Return the document of each span of a sequence, None if its source does not know them."""
        source = self.get_source_index(index)
        rows = self._sources[source]
        found = locate_pieces(rows, index - int(self._ends[source]) + len(rows))
        return (
            None
            if found is None
            else [replace(one, document=(source, one.document)) for one in found]
        )

    def get_source_index(self, index: int) -> int:
        """Return the index of the source of a sequence."""
        return int(np.searchsorted(self._ends, index, side="right"))

    def compute_epoch_order(self, epoch: int, *, seed: int | None) -> NDArray[np.integer]:
        """Return the indices of the sequences of an epoch, sources in turn without a seed."""
        counts, read_before = self._counts.count_epoch(epoch)
        of_source = interleave_sources(counts)
        of_source = of_source[shuffle_order(len(of_source), seed=seed, epoch=epoch)[:]]
        order = np.empty(len(of_source), dtype=np.int64)
        for number, (count, start) in enumerate(zip(counts, read_before, strict=True)):
            offset = int(self._ends[number]) - len(self._sources[number])
            order[of_source == number] = offset + self._read_source(number, start, count, seed)
        return order

    def _read_source(
        self, number: int, start: int, count: int, seed: int | None
    ) -> NDArray[np.integer]:
        """Return the indices of `count` sequences of a source, epoch after epoch, from `start`."""
        size, end = self._num_used[number], start + count
        parts = [np.zeros(0, dtype=np.int64)]
        for epoch in range(start // size, -(-end // size)):
            first = epoch * size
            order = self._get_source_order(number, epoch, seed)
            parts.append(order[max(0, start - first) : end - first].astype(np.int64))
        return np.concatenate(parts)

    def _get_source_order(self, number: int, epoch: int, seed: int | None) -> SampleOrder:
        """Return the order of a source in one of its epochs. The last one is kept."""
        key = (epoch, seed)
        if number not in self._orders or self._orders[number][0] != key:
            rows = self._sources[number]
            order: SampleOrder
            if isinstance(rows, OrderedDataset):
                order = rows.compute_epoch_order(epoch, seed=seed)
            else:
                # 1 and more: the order of the mixture's own epochs has no key
                order = shuffle_order(
                    self._num_used[number], seed=seed, epoch=epoch, key=(number + 1,)
                )
            self._orders[number] = key, order
        return self._orders[number][1]

    def check(self) -> None:
        """Raise a data problem if a source has changed since it was opened."""
        for number, rows in enumerate(self._sources):
            with nest_problems(("sources", number, "dataset")):
                rows.check()


def add_missing_channels(sample: NDArray[np.int64], num_channels: int) -> NDArray[np.int64]:
    """Add the channels that sequences of another source have.

    They mean: every token counts, positions from 0, and weight 1.
    """
    whole = (
        np.stack([sample, np.ones_like(sample), np.arange(len(sample))])
        if sample.ndim == 1
        else sample
    )
    return (
        whole
        if num_channels == 3
        else np.concatenate([whole, np.full_like(whole[:1], WEIGHT_ONE_BITS)])
    )


def build_mixture_dataset(
    config: MixtureDatasetConfig,
    *,
    tokenizer: Tokenizer | None,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
    open_stream: OpenStream | None = None,
) -> MixtureDataset:
    """Build the dataset of a mixture.

    Of held-out documents, all are read once, and sources with too few of them are left out.
    `open_stream` opens the sources that are streamed, if they are not to be tokenized as a whole.

    Raises:
        ProblemsFound: A data problem with a path relative to the config.
    """
    if not config.sources:
        hint = "set sources: [{dataset: {name: text, path: ...}, weight: 1}, ...]"
        raise problem_error("data", "the mixture has no sources", path=("sources",), hint=hint)
    read, sources = list[MixtureSource](), list[IndexedDataset]()
    too_small: HeldOutDataTooSmall | None = None
    for number, source in enumerate(config.sources):
        with nest_problems(("sources", number, "dataset")):
            try:
                rows = build_source(
                    source,
                    tokenizer=tokenizer,
                    sample_length=sample_length,
                    cache_folder=cache_folder,
                    holdout=holdout,
                    open_stream=open_stream,
                )
            except HeldOutDataTooSmall as found:
                log.warning("source %d is not validated: %s", number, found.problems[0].message)
                too_small = found
                continue
        is_held_out = holdout is not None and holdout.is_validation
        # limits are those of training
        read.append(
            MixtureSource(dataset=source.dataset, weight=source.weight) if is_held_out else source
        )
        sources.append(rows)
    if too_small is not None and not sources:
        raise too_small
    return mix_sources(config, read, sources)


def build_source(
    source: MixtureSource,
    *,
    tokenizer: Tokenizer | None,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None,
    open_stream: OpenStream | None = None,
) -> IndexedDataset:
    """Build the dataset of one source."""
    if open_stream is not None and source.dataset.is_streamed:
        return open_stream(source.dataset)
    split = {} if holdout is None else {"holdout": replace(holdout, is_part=True)}
    rows: IndexedDataset = source.dataset.load_builder()(
        source.dataset,
        tokenizer=tokenizer,
        sample_length=sample_length,
        cache_folder=cache_folder,
        **split,
    )
    if len(rows) == 0:
        raise problem_error(
            "data", "the data has no sequences", hint="use more data or a smaller seq_len"
        )
    return rows


def mix_sources(
    config: MixtureDatasetConfig, read: Sequence[MixtureSource], datasets: Sequence[IndexedDataset]
) -> MixtureDataset:
    """Mix the datasets of the sources that are read."""
    sources = [
        rows if source.max_rows is None else view_first_epoch(rows)
        for rows, source in zip(datasets, read, strict=True)
    ]
    taken = [
        min(get_epoch_size(rows), source.max_rows or get_epoch_size(rows))
        for rows, source in zip(sources, read, strict=True)
    ]
    counts = compute_samples_per_source(taken, read)
    lines = describe_source_shares(read, taken, counts, repeat=config.repeat)
    limits = [
        min(
            (
                known
                for known in (compute_source_limit(size, source), get_total_size(rows))
                if known
            ),
            default=None,
        )
        for rows, size, source in zip(sources, taken, read, strict=True)
    ]
    weights = [source.weight for source in read]
    return MixtureDataset(sources, taken, MixtureCounts(counts, weights, limits), lines)


def name_sources(sources: Sequence[MixtureSource]) -> list[str]:
    """Return a name of each source: of several with the same dataset, where their records are."""
    names = [source.dataset.name for source in sources]
    return [
        name if names.count(name) == 1 else get_records_name(source.dataset) or name
        for name, source in zip(names, sources, strict=True)
    ]


def get_records_name(config: DatasetConfig) -> str | None:
    """Return the path or repository of a dataset, None if it has neither."""
    name: str | None = getattr(config, "path", None) or getattr(config, "repo", None)
    return name


def describe_source_shares(
    sources: Sequence[MixtureSource], taken: Sequence[int], counts: Sequence[int], *, repeat: bool
) -> list[str]:
    """Return lines about the number of sequences of each source in an epoch.

    Args:
        sources: Sources of the mixture.
        taken: Number of sequences that each source has.
        counts: Number of sequences of each source in an epoch.
        repeat: Whether the mixture has further epochs.

    Raises:
        ProblemsFound: A data problem if a source has no sequence in an epoch.
    """
    lines, names = [], name_sources(sources)
    for number, (source, size, count) in enumerate(zip(sources, taken, counts, strict=True)):
        if count == 0:
            message = (
                f"weight {source.weight:g} gives this source none of the "
                f"{pluralize(sum(counts), 'sequence')} of an epoch"
            )
            raise problem_error(
                "data",
                message,
                path=("sources", number, "weight"),
                hint="raise it, or remove the source",
            )
        lines.append(
            f"an epoch of the mixture reads {pluralize(count, 'sequence')} of source {number}, "
            f"'{names[number]}': {100 * count / sum(counts):.3g}% of all, "
            f"{count / size:.3g} times its {size}"
        )
        if repeat and source.epochs is not None:
            lines.append(
                f"source {number}, '{names[number]}', is not used after it has been read "
                f"{source.epochs:g} times"
            )
    return lines
