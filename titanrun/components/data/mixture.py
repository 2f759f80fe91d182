"""Rows of several datasets in given shares."""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import MixtureDatasetConfig, MixtureSource
from titanrun.components.data.rows import Rows
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.counted import counted
from titanrun.config.placed import placed
from titanrun.config.problems import fail

log = logging.getLogger(__name__)

WEIGHS_ONE = int(np.float32(1).view(np.int32))
"""The bits of the number 1, as rows hold weights."""


class MixedRows:
    """One pass over a mixture: so many rows of each source, as evenly spread as can be, each source's in its own order.

    Rows without marks among rows with them are one document of which everything counts, and rows without weights weigh 1.

    Args:
        sources: the rows of each.
        taken: how many of each source's first rows are used.
        counts: how many rows of a pass each source has; more than `taken` means that they come again.
    """

    def __init__(
        self, sources: Sequence[Rows], taken: Sequence[int], counts: Sequence[int]
    ) -> None:
        self._sources = tuple(sources)
        self._taken = tuple(taken)
        self._source, self._ordinal = interleaved(counts)
        self._height = max(len(rows[0]) if rows[0].ndim == 2 else 1 for rows in sources)
        self.max_token_id = max(rows.max_token_id for rows in sources)
        described = [
            [rows.fingerprint, *rest] for rows, *rest in zip(sources, taken, counts, strict=True)
        ]
        self.fingerprint = hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        source = int(self._source[index])
        row = self._sources[source][int(self._ordinal[index]) % self._taken[source]]
        return (
            row
            if self._height == 1 or (row.ndim == 2 and len(row) == self._height)
            else marked(row, self._height)
        )

    def source_of(self, index: int) -> int:
        """The number of the source that a row is of."""
        return int(self._source[index])

    def check(self) -> None:
        """Raises a data problem where a source has changed since it was opened."""
        for number, rows in enumerate(self._sources):
            with placed(("sources", number, "dataset")):
                rows.check()


def interleaved(counts: Sequence[int]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """For each row of a pass the source it is of, and which of that source's rows it is."""
    # the middle of each row's stretch of the pass, in which its source has one row
    middles = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
    order = np.argsort(middles, kind="stable")
    source = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)[order]
    ordinal = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])[order]
    return source, ordinal


def marked(row: NDArray[np.int64], height: int) -> NDArray[np.int64]:
    """A row with all that rows of some other source have: that all of it counts, positions, and that each token weighs 1."""
    whole = np.stack([row, np.ones_like(row), np.arange(len(row))]) if row.ndim == 1 else row
    return whole if height == 3 else np.concatenate([whole, np.full_like(whole[:1], WEIGHS_ONE)])


def mixture_rows(
    config: MixtureDatasetConfig,
    *,
    tokenizer: Tokenizer | None,
    row_length: int,
    cache_folder: Path,
) -> MixedRows:
    """The rows of a mixture. What a pass takes of each source is logged. Raises a data problem, placed relative to the config."""
    if not config.sources:
        help = "set sources: [{dataset: {name: text, path: ...}, weight: 1}, ...]"
        raise fail("data", "the mixture has no sources", path=("sources",), help=help)
    sources = []
    for number, source in enumerate(config.sources):
        with placed(("sources", number, "dataset")):
            rows: Rows = source.dataset.builder()(
                source.dataset,
                tokenizer=tokenizer,
                row_length=row_length,
                cache_folder=cache_folder,
            )
            if len(rows) == 0:
                raise fail(
                    "data", "the data has no rows", help="use more data or a smaller seq_len"
                )
        sources.append(rows)
    taken = [
        min(len(rows), source.max_rows or len(rows))
        for rows, source in zip(sources, config.sources, strict=True)
    ]
    counts = rows_of_a_pass(taken, config.sources)
    for number, (source, rows, count) in enumerate(zip(config.sources, taken, counts, strict=True)):
        if count == 0:
            message = f"weight {source.weight:g} gives this source no row of the {counted(sum(counts), 'row')} of a pass"
            raise fail(
                "data",
                message,
                path=("sources", number, "weight"),
                help="raise it, or remove the source",
            )
        log.info(
            "a pass over the mixture takes %s of source %d, '%s': %.3g%% of all, %.3g times its %d",
            *(
                counted(count, "row"),
                number,
                source.dataset.name,
                100 * count / sum(counts),
                count / rows,
                rows,
            ),
        )
    return MixedRows(sources, taken, counts)


def rows_of_a_pass(taken: Sequence[int], sources: Sequence[MixtureSource]) -> list[int]:
    """How many rows of each source a pass has: in the shares that weights say, as many as the first source whose `epochs` are over allows.

    Where no source says how often it may be read, a pass reads each at least once.
    """
    total = sum(source.weight for source in sources)
    lengths = [rows * total / source.weight for rows, source in zip(taken, sources, strict=True)]
    limits = [
        length * source.epochs
        for length, source in zip(lengths, sources, strict=True)
        if source.epochs is not None
    ]
    length = min(limits) if limits else max(lengths)
    # rounding must not cut the last row of the source that decides
    return [int(length * source.weight / total + 1e-6) for source in sources]
