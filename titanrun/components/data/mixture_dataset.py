"""Sequences of several datasets in given shares."""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import MixtureDatasetConfig, MixtureSource
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)

WEIGHT_ONE_BITS = int(np.float32(1).view(np.int32))
"""Bits of the number 1, as samples hold weights."""


class MixtureDataset:
    """One epoch of a mixture.

    It has a given number of sequences of each source, spread as evenly as possible, each source in
    its own order. If some source has channels, sequences without them become one document in which
    everything counts, and sequences without weights have weight 1.

    Args:
        sources: Datasets.
        num_used: Number of sequences of each source that are used, the first ones.
        counts: Number of sequences of each source in an epoch. More than `num_used` means
            repetition.
    """

    def __init__(
        self, sources: Sequence[IndexedDataset], num_used: Sequence[int], counts: Sequence[int]
    ) -> None:
        self._sources = tuple(sources)
        self._num_used = tuple(num_used)
        self._source_indices, self._sample_indices = interleave_sources(counts)
        self._num_channels = max(len(rows[0]) if rows[0].ndim == 2 else 1 for rows in sources)
        self.max_token_id = max(rows.max_token_id for rows in sources)
        described = [
            [rows.fingerprint, *rest] for rows, *rest in zip(sources, num_used, counts, strict=True)
        ]
        self.fingerprint = hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._source_indices)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        source = int(self._source_indices[index])
        row = self._sources[source][int(self._sample_indices[index]) % self._num_used[source]]
        return (
            row
            if self._num_channels == 1 or (row.ndim == 2 and len(row) == self._num_channels)
            else add_missing_channels(row, self._num_channels)
        )

    def get_source_index(self, index: int) -> int:
        """Return the index of the source of a sequence."""
        return int(self._source_indices[index])

    def check(self) -> None:
        """Raise a data problem if a source has changed since it was opened."""
        for number, rows in enumerate(self._sources):
            with nest_problems(("sources", number, "dataset")):
                rows.check()


def interleave_sources(counts: Sequence[int]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the source of each sequence of an epoch, and the index within that source."""
    # middle of each sequence's stretch of the epoch, in which its source has one sequence
    middles = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
    order = np.argsort(middles, kind="stable")
    source = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)[order]
    ordinal = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])[order]
    return source, ordinal


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
) -> MixtureDataset:
    """Build the dataset of a mixture and log the shares of its sources.

    Raises:
        ProblemsFound: A data problem with a path relative to the config.
    """
    if not config.sources:
        hint = "set sources: [{dataset: {name: text, path: ...}, weight: 1}, ...]"
        raise problem_error("data", "the mixture has no sources", path=("sources",), hint=hint)
    sources = []
    for number, source in enumerate(config.sources):
        with nest_problems(("sources", number, "dataset")):
            rows: IndexedDataset = source.dataset.load_builder()(
                source.dataset,
                tokenizer=tokenizer,
                sample_length=sample_length,
                cache_folder=cache_folder,
            )
            if len(rows) == 0:
                raise problem_error(
                    "data", "the data has no sequences", hint="use more data or a smaller seq_len"
                )
        sources.append(rows)
    taken = [
        min(len(rows), source.max_rows or len(rows))
        for rows, source in zip(sources, config.sources, strict=True)
    ]
    counts = compute_samples_per_source(taken, config.sources)
    log_source_shares(config, taken, counts)
    return MixtureDataset(sources, taken, counts)


def log_source_shares(
    config: MixtureDatasetConfig, taken: Sequence[int], counts: Sequence[int]
) -> None:
    """Log the number of sequences of each source in an epoch.

    Args:
        config: Config of the mixture.
        taken: Number of sequences that each source has.
        counts: Number of sequences of each source in an epoch.

    Raises:
        ProblemsFound: A data problem if a source has no sequence in an epoch.
    """
    for number, (source, size, count) in enumerate(zip(config.sources, taken, counts, strict=True)):
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
        log.info(
            "an epoch of the mixture reads %s of source %d, '%s': %.3g%% of all, %.3g times its %d",
            *(
                pluralize(count, "sequence"),
                number,
                source.dataset.name,
                100 * count / sum(counts),
                count / size,
                size,
            ),
        )


def compute_samples_per_source(
    num_used: Sequence[int], sources: Sequence[MixtureSource]
) -> list[int]:
    """Return the number of sequences of each source in an epoch.

    Shares follow the weights. The epoch ends when the first source reaches its `epochs`. If no
    source sets them, an epoch reads each sequence at least once.
    """
    total = sum(source.weight for source in sources)
    lengths = [rows * total / source.weight for rows, source in zip(num_used, sources, strict=True)]
    limits = [
        length * source.epochs
        for length, source in zip(lengths, sources, strict=True)
        if source.epochs is not None
    ]
    length = min(limits) if limits else max(lengths)
    # rounding must not drop the last sequence of the source that decides
    return [int(length * source.weight / total + 1e-6) for source in sources]
