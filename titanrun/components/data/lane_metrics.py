"""Metrics of streams, over all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from titanrun.components.data.damaged_files import DamagedRecords, join_damaged
from titanrun.components.data.lane_rows import LaneCursor
from titanrun.components.data.read_counts import ReadCounts


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """Documents that a lane has read since the run began, and the epochs that its streams are in.

    Epochs are counted from 0. `num_bad` are the records that could not be read.
    """

    num_documents: int
    num_bad: int
    first_epoch: int
    last_epoch: int

    @classmethod
    def from_cursors(cls, cursors: Sequence[LaneCursor]) -> "LaneProgress":
        """Return the progress of a lane with one cursor for each stream."""
        epochs = [cursor.epoch for cursor in cursors]
        num_documents = sum(cursor.documents for cursor in cursors)
        num_bad = sum(cursor.all_bad for cursor in cursors)
        return cls(num_documents, num_bad, min(epochs), max(epochs))


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What one rank has read.

    `waited_seconds` and `counts` are those since the last report, `damaged` has the files of each
    stream that are left out, or nothing if a damaged file ends the run. `skips_bad_records` says
    whether a record that cannot be read does not end it.
    """

    waited_seconds: float
    counts: ReadCounts
    lanes: Mapping[int, LaneProgress]
    damaged: Sequence[DamagedRecords]
    skips_bad_records: bool = False


def build_stream_metrics(reports: Sequence[ReadReport]) -> dict[str, float]:
    """Return the metrics of all ranks.

    `data/wait_seconds`: on the rank that waited longest. `data/retries` and `data/bytes`: sums of
    all ranks. `data/documents`: read since the run began. `data/epoch_min` and `data/epoch_max`: of
    all lanes. `data/bad_files`: damaged files that are left out. `data/bad_records`: records that
    are left out since the run began, except those of the windows that lanes are in.
    """
    # a lane that several ranks read counts once
    lanes = {lane: progress for report in reports for lane, progress in report.lanes.items()}
    metrics = {
        "data/wait_seconds": max(report.waited_seconds for report in reports),
        "data/retries": sum(report.counts.num_retries for report in reports),
        "data/bytes": sum(report.counts.num_bytes for report in reports),
        "data/documents": sum(one.num_documents for one in lanes.values()),
        "data/epoch_min": min(one.first_epoch for one in lanes.values()),
        "data/epoch_max": max(one.last_epoch for one in lanes.values()),
    }
    if reports[0].skips_bad_records:
        metrics["data/bad_records"] = sum(one.num_bad for one in lanes.values())
    if reports[0].damaged:
        joined = join_damaged([report.damaged for report in reports])
        metrics["data/bad_files"] = sum(map(len, joined))
    return metrics
