"""Lanes of a stream that one process runs, and what it needs to build them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.damaged_files import DamagedFiles, DamagedRecords
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.lane_mixture import MixturePattern
from titanrun.components.data.lane_plan import StreamPlan
from titanrun.components.data.lane_records import StreamFiles
from titanrun.components.data.lane_rows import (
    BadRecordLimit,
    LaneCursor,
    LaneReader,
    LaneSequence,
)
from titanrun.components.data.lane_windows import LaneSettings
from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.data.stream_config import StreamFields
from titanrun.components.data.window_encoders import WindowEncoder, load_encoder
from titanrun.components.data.window_prefetch import WindowPrefetcher
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One stream: its config, its files, and its path below the dataset of the run.

    `number` is its index in a mixture, else 0.
    """

    config: StreamFields
    plan: StreamPlan
    files: StreamFiles
    number: int = 0
    path: DataPath = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneJob:
    """Everything that the sequences of all lanes depend on.

    `rows_per_step` is the number of sequences that a lane gives to each global batch. `seed` is
    None if nothing is shuffled. `pattern` orders the sources of a mixture. `holdout` is
    the side of the split of the documents that is read, None for all of them. `counts` are those of
    the files of all sources.
    """

    sources: tuple[StreamSource, ...]
    num_lanes: int
    rows_per_step: int
    seed: int | None
    repeats: bool
    sample_length: int
    pattern: MixturePattern | None = None
    holdout: Holdout | None = None
    counts: ReadCounts = field(default_factory=ReadCounts, compare=False)

    @property
    def skips_bad_files(self) -> bool:
        """Whether damaged files of a source are left out."""
        return any(source.config.skips_bad_files for source in self.sources)

    @property
    def skips_bad_records(self) -> bool:
        """Whether records of a source that cannot be read are left out."""
        return any(find_max_bad_share(source) is not None for source in self.sources)

    def find_source(self, lane: int, row: int) -> int:
        """Return the number of the source of a sequence of a lane."""
        return (
            self.sources[0].number if self.pattern is None else self.pattern.find_source(lane, row)
        )


@dataclass(frozen=True, slots=True)
class LaneShare:
    """Sequences of one lane in a global batch, and its cursors after them.

    The sequences are None where the source is not a stream, or has ended. There is one cursor for
    each stream.
    """

    rows: tuple[NDArray[np.int64] | None, ...]
    cursors: tuple[LaneCursor, ...]


LaneCursors = Mapping[int, Sequence[LaneCursor]]
"""Cursors of lanes, one for each source."""


class LaneRunner(Protocol):
    """Reader of the shares of several lanes, one global batch at a time."""

    @property
    def damaged(self) -> Sequence[DamagedRecords]:
        """Damaged files of each stream that are left out, those of the shares so far."""
        ...

    def seek(
        self, num_rows: int, cursors: LaneCursors, damaged: Sequence[DamagedRecords] = ()
    ) -> None:
        """Continue at these cursors, after `num_rows` sequences of each lane.

        `damaged` are files of each stream that are known to be damaged.
        """
        ...

    def next_shares(self) -> dict[int, LaneShare]:
        """Return the shares of the lanes in the next global batch."""
        ...

    def pop_counts(self) -> ReadCounts:
        """Return what was read since the last call."""
        ...

    def close(self) -> None:
        """Release files and processes."""
        ...


def find_max_bad_share(source: StreamSource) -> float | None:
    """Return the share of its records that may be left out, None if none may."""
    config = source.config
    if isinstance(config, DocumentsConfig) and config.bad_records == "skip":
        return config.max_bad_share
    return None


def load_encoders(job: LaneJob, tokenizer: Tokenizer) -> list[WindowEncoder]:
    """Build the encoder of each stream."""
    found = []
    for source in job.sources:
        with nest_problems(source.path):
            found.append(load_encoder(source.config, tokenizer, job.holdout))
    return found


class LocalLaneRunner:
    """Lanes that run in this process, as far as their sequences are asked for.

    Args:
        job: Streams and lanes.
        lanes: Lanes that are run.
        tokenizer: Tokenizer.
        prefetcher: Reads the windows ahead. None: they are read as they are needed.
    """

    def __init__(
        self,
        job: LaneJob,
        lanes: Sequence[int],
        tokenizer: Tokenizer,
        prefetcher: WindowPrefetcher | None = None,
    ) -> None:
        self._prefetcher = prefetcher
        self._job, self._lanes = job, tuple(lanes)
        self._encoders = load_encoders(job, tokenizer)
        # one for all lanes, so that a process logs a few of its bad records
        self._bad_records = [BadRecordLimit(find_max_bad_share(one)) for one in job.sources]
        self._indices = {source.number: index for index, source in enumerate(job.sources)}
        self._sequences: dict[int, list[Iterator[LaneSequence]]] = {}
        self._cursors: dict[int, list[LaneCursor]] = {}
        self._num_rows = 0
        self._damaged = [DamagedFiles() for _ in job.sources]

    @property
    def damaged(self) -> Sequence[DamagedRecords]:
        """Damaged files of each stream that are left out."""
        return [dict(one.records) for one in self._damaged]

    def seek(
        self, num_rows: int, cursors: LaneCursors, damaged: Sequence[DamagedRecords] = ()
    ) -> None:
        """Continue at these cursors, after `num_rows` sequences of each lane."""
        self._num_rows = num_rows
        known = damaged or [{} for _ in self._job.sources]
        self._damaged = [DamagedFiles(dict(records)) for records in known]
        self._cursors = {lane: list(cursors[lane]) for lane in self._lanes}
        self._sequences = {
            lane: [
                self._build_reader(lane, number).iter_sequences(cursor)
                for number, cursor in enumerate(self._cursors[lane])
            ]
            for lane in self._lanes
        }

    def next_shares(self) -> dict[int, LaneShare]:
        """Return the shares of the lanes in the next global batch."""
        shares = {lane: self._read_share(lane) for lane in self._lanes}
        self._num_rows += self._job.rows_per_step
        return shares

    def pop_counts(self) -> ReadCounts:
        """Return what was read since the last call."""
        return self._job.counts.pop()

    def close(self) -> None:
        """Close the files."""
        self._sequences = {}

    def _read_share(self, lane: int) -> LaneShare:
        rows = range(self._num_rows, self._num_rows + self._job.rows_per_step)
        read = tuple(self._read_row(lane, self._job.find_source(lane, row)) for row in rows)
        return LaneShare(read, tuple(self._cursors[lane]))

    def _read_row(self, lane: int, number: int) -> NDArray[np.int64] | None:
        """Return the next sequence of a lane from a source, None if it has none."""
        source = self._indices.get(number)
        if source is None:
            return None
        with nest_problems(self._job.sources[source].path):
            sequence = next(self._sequences[lane][source], None)
        if sequence is None:
            return None
        self._cursors[lane][source] = sequence.cursor
        return sequence.tokens

    def _build_reader(self, lane: int, source: int) -> LaneReader:
        config = self._job.sources[source].config
        return build_lane_reader(
            self._job,
            lane,
            self._job.sources[source],
            self._encoders[source],
            bad_records=self._bad_records[source],
            damaged=self._damaged[source] if config.skips_bad_files else None,
            prefetcher=self._prefetcher,
        )


def build_lane_reader(
    job: LaneJob,
    lane: int,
    source: StreamSource,
    encoder: WindowEncoder,
    *,
    bad_records: BadRecordLimit,
    damaged: DamagedFiles | None = None,
    prefetcher: WindowPrefetcher | None = None,
) -> LaneReader:
    """Build the reader of one lane of a source, which ends at damaged files without `damaged`."""
    config = source.config
    window = config.resolve_window()
    assert window is not None, "the source is a stream"
    settings = LaneSettings(
        lane=lane,
        num_lanes=job.num_lanes,
        seed=job.seed,
        repeats=job.repeats,
        window=window,
        source=source.number,
        required=encoder.required,
    )
    return LaneReader(
        source.plan,
        source.files,
        settings,
        encoder,
        sample_length=job.sample_length,
        bad_records=bad_records,
        damaged=damaged,
        prefetcher=prefetcher,
    )
