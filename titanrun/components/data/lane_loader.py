"""Data loader of streams whose global batches do not depend on ranks or processes."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.damaged_files import (
    DamagedRecords,
    check_damaged_files,
    join_damaged,
)
from titanrun.components.data.dataloader import DataloaderExhaustedError
from titanrun.components.data.lane_metrics import LaneProgress, ReadReport, build_stream_metrics
from titanrun.components.data.lane_mixture import IndexedLanes
from titanrun.components.data.lane_plan import find_lanes
from titanrun.components.data.lane_rows import LaneCursor, build_padding
from titanrun.components.data.lane_runner import LaneJob, LaneRunner, LaneShare
from titanrun.components.data.lane_state import StreamIdentity, StreamState
from titanrun.components.data.late_data import keep_heartbeats, report_late_data
from titanrun.components.data.mixture_dataset import add_missing_channels
from titanrun.components.data.stream_sources import get_source_name
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath, problem_error
from titanrun.distributed.data_waits import report_wait
from titanrun.distributed.object_collectives import RankGroup

SINGLE_RANK = RankGroup()
log = logging.getLogger(__name__)


class LaneLoader:
    """Loader of one data-parallel rank's share of each global batch of streams.

    Sequence j of a global batch of G comes from lane j * L // G of L lanes, so that each lane gives
    G / L consecutive sequences of its own. A rank reads the lanes that its share comes from. If
    several ranks share a lane, each reads it and drops the sequences of the others.

    Args:
        job: Streams and lanes.
        runner: Reads the lanes of this rank.
        identity: What the state is valid for.
        num_channels: Channels of the sequences.
        indexed: Indexed sources of a mixture, by their numbers.
        dp_rank: Data-parallel rank.
        dp_size: Number of data-parallel ranks.
        ranks: All ranks, for the state, the end of the data and waits for late data.
        wait_seconds: How long the ranks wait for each other's data.
        config_path: Path of the dataset in the recipe, for problems with it.
    """

    num_samples = None
    _damaged: Sequence[DamagedRecords]
    _has_next: bool | None

    def __init__(
        self,
        job: LaneJob,
        runner: LaneRunner,
        identity: StreamIdentity,
        *,
        num_channels: int,
        indexed: Mapping[int, IndexedLanes] | None = None,
        dp_rank: int = 0,
        dp_size: int = 1,
        ranks: RankGroup = SINGLE_RANK,
        wait_seconds: float = 0.0,
        config_path: DataPath = (),
    ) -> None:
        self._job, self._runner, self._identity = job, runner, identity
        self._num_channels, self._config_path = num_channels, config_path
        self._ranks, self._wait_seconds = ranks, wait_seconds
        self._waited, self._indexed = 0.0, dict(indexed or {})
        self.global_batch_size = job.num_lanes * job.rows_per_step
        size = self.global_batch_size // dp_size
        self._slots = range(dp_rank * size, (dp_rank + 1) * size)
        self._lanes = find_lanes(dp_rank, dp_size, job.num_lanes)
        self._cursors: dict[int, Sequence[LaneCursor]] = {}
        self._ahead: dict[int, LaneShare] | None = None
        self._start_at(build_first_state(job))

    def next_samples(self) -> NDArray[Any]:
        """Return this rank's sequences of the next global batch.

        Their shape is [sequences, seq_len + 1], or [sequences, channels, seq_len + 1].

        Raises:
            DataloaderExhaustedError: If the data does not repeat and nothing is left.
            ProblemsFound: If a file or record cannot be read.
        """
        if not self.has_next():
            raise DataloaderExhaustedError
        shares = self._read_ahead()
        self._ahead = None
        self._has_next = None
        self._cursors = {lane: share.cursors for lane, share in shares.items()}
        first = self._rows_read // self._job.num_lanes
        self._rows_read += self.global_batch_size
        with nest_problems(self._config_path):
            # before and after, as in `DistributedDataLoader`
            self._check_indexed()
            rows = [
                self._complete(shares[lane].rows[number], lane, first + number)
                for lane, number in self._iter_slots()
            ]
            self._check_indexed()
        return np.stack(rows)

    def has_next(self) -> bool:
        """Return whether another global batch has a token that counts.

        Collective: all ranks must call this. They wait here for those whose data is late, and not
        in a collective of the training step, which would time out, and all learn of data that one
        of them cannot read.

        Raises:
            ProblemsFound: If the batch of a rank cannot be read, or too many files are damaged, the
                same problems on all ranks.
        """
        if self._has_next is None:
            with keep_heartbeats(self._wait_seconds):
                found = self._ranks.all_gather_results(self._look_ahead)
            self._has_next = any(has_tokens for has_tokens, _ in found)
            self._damaged = join_damaged([damaged for _, damaged in found])
            with nest_problems(self._config_path):
                self._check_damaged()
        return self._has_next

    def last_indices(self) -> list[list[int]]:
        """Return lane and index in the lane of each sequence of the last batch."""
        size = self._job.rows_per_step
        first = self._rows_read // self._job.num_lanes - size
        return [[lane, first + number] for lane, number in self._iter_slots()] if first >= 0 else []

    def close(self) -> None:
        """Release files and processes."""
        self._runner.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the cursors of all lanes. Collective: all ranks must call this."""
        found: dict[int, Sequence[LaneCursor]] = {}
        for cursors in self._ranks.all_gather_results(lambda: self._cursors):
            found = {**cursors, **found}
        # simulated ranks gather only their own
        first = build_first_state(self._job).cursors
        return self._identity.build_state_dict(
            StreamState(self._rows_read, {**first, **found}, self._damaged)
        )

    def collect_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call. Collective: all ranks must call this."""
        report = ReadReport(
            self._waited,
            self._runner.pop_counts(),
            {lane: LaneProgress.from_cursors(found) for lane, found in self._cursors.items()},
            self._damaged if self._job.skips_bad_files else (),
            self._job.skips_bad_records,
        )
        self._waited = 0.0
        return build_stream_metrics(self._ranks.all_gather_results(lambda: report))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, allows_other_data: bool = False
    ) -> None:
        """Continue after the sequences that a state has read.

        Other data is a data problem, or with `allows_other_data` starts at its beginning.
        """
        difference = self._identity.find_difference(state_dict)
        if difference is None:
            self._start_at(self._identity.parse_state_dict(state_dict))
            return
        if not allows_other_data:
            hint = self._identity.build_hint(state_dict)
            raise problem_error("data", difference, path=(), hint=hint)
        log.warning("%s; starting with the new data", difference)
        self._start_at(build_first_state(self._job))

    def _start_at(self, state: StreamState) -> None:
        """Drop what was read ahead and continue after `state`."""
        self._rows_read, self._ahead = state.rows_read, None
        self._has_next = None
        self._cursors = {lane: state.cursors[lane] for lane in self._lanes}
        self._damaged = state.damaged
        self._runner.seek(state.rows_read // self._job.num_lanes, self._cursors, state.damaged)

    def _read_ahead(self) -> dict[int, LaneShare]:
        """Return the shares of the next global batch, read once."""
        if self._ahead is None:
            started = time.monotonic()
            try:
                with (
                    nest_problems(self._config_path),
                    report_late_data(name_local_sources(self._job)),
                ):
                    self._ahead = self._runner.next_shares()
            finally:
                self._waited += time.monotonic() - started
                # also of data that does not come: the last step is saved then
                report_wait(None)
        return self._ahead

    def _look_ahead(self) -> tuple[bool, Sequence[DamagedRecords]]:
        """Return whether a lane of this rank has a label in the next global batch.

        Also return the damaged files that its lanes have found up to there.
        """
        rows = [row for share in self._read_ahead().values() for row in share.rows]
        has_tokens = self._job.repeats or any(
            row is not None and bool(row[1, 1:].any()) for row in rows
        )
        return has_tokens, self._runner.damaged

    def _check_damaged(self) -> None:
        """Raise a data problem if a stream has more damaged files than it may have."""
        for source, records in zip(self._job.sources, self._damaged, strict=True):
            check_damaged_files(
                records, source.plan, max_files=source.config.max_bad_files, path=source.path
            )

    def _iter_slots(self) -> list[tuple[int, int]]:
        """Return lane and index in its share of each sequence of this rank."""
        return [divmod(slot, self._job.rows_per_step) for slot in self._slots]

    def _check_indexed(self) -> None:
        """Raise a data problem if an indexed source has changed since it was opened."""
        for one in self._indexed.values():
            one.check()

    def _complete(
        self, sequence: NDArray[np.int64] | None, lane: int, row: int
    ) -> NDArray[np.int64]:
        """Return a sequence with all channels.

        If there is none, it is that of an indexed source, or padding after the end of the lane.
        """
        if sequence is None:
            number = self._job.find_source(lane, row)
            if number not in self._indexed:
                return build_padding(self._num_channels, self._job.sample_length)
            assert self._job.pattern is not None
            count = self._job.pattern.count_before(lane, row, number)
            sequence = self._indexed[number].read(lane, count)
        has_all = self._num_channels == (1 if sequence.ndim == 1 else len(sequence))
        return sequence if has_all else add_missing_channels(sequence, self._num_channels)


def name_local_sources(job: LaneJob) -> str | None:
    """Return the paths of the streams of local files, None without one.

    Requests for remote files report themselves that they are repeated.
    """
    names = [
        f"'{get_source_name(source.config)}'"
        for source in job.sources
        if not source.config.has_remote_files
    ]
    return ", ".join(names) or None


def build_first_state(job: LaneJob) -> StreamState:
    """Return the state before the first sequence."""
    cursors = {lane: [LaneCursor() for _ in job.sources] for lane in range(job.num_lanes)}
    return StreamState(0, cursors, [{} for _ in job.sources])
