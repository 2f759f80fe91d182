"""State of a stream in checkpoints: the cursors of its lanes, and what they are valid for."""

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.data.damaged_files import DamagedRecords
from titanrun.components.data.lane_plan import PlanFile, StreamPlan, get_plan_name
from titanrun.components.data.lane_rows import CURSOR_FIELDS, LaneCursor
from titanrun.components.data.lane_runner import LaneJob, StreamSource
from titanrun.components.data.token_writer import write_file_atomically
from titanrun.config.pluralize import pluralize

KIND, VERSION = "stream", 2
"""Version of what the numbers of a cursor mean. 1: each striped file began at a lane of its own."""
MAX_LISTED_FILES = 5
STREAM_HINT = (
    "restore the data of the run, or add training.dataset to checkpoint.allow_change "
    "to start with the new data"
)
LANES_HINT = (
    "set training.lanes: {}, or add training.dataset to checkpoint.allow_change to start at the "
    "beginning of the data"
)


@dataclass(frozen=True, slots=True)
class StreamState:
    """Progress of a run in its streams.

    `rows_read` counts the sequences of all lanes. `cursors` are those of each lane. `damaged` are
    the files of each stream that are left out.
    """

    rows_read: int
    cursors: Mapping[int, Sequence[LaneCursor]]
    damaged: Sequence[DamagedRecords]


class StreamIdentity:
    """What the cursors of a stream are valid for.

    Args:
        job: Sources and lanes.
        settings: What the sequences depend on beside files, lanes and their order.
        plan_folder: Folder in which the plans of a run are kept, to tell which files changed.
    """

    def __init__(self, job: LaneJob, settings: Sequence[Any], plan_folder: Path | None) -> None:
        self._job, self._plan_folder = job, plan_folder
        described = [
            [source.plan.digest for source in job.sources],
            [source.config.resolve_window() for source in job.sources],
            [job.num_lanes, job.seed, job.sample_length],
            list(settings),
        ]
        self.fingerprint = hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def build_state_dict(self, state: StreamState) -> dict[str, Any]:
        """Return the state for JSON."""
        lanes = range(self._job.num_lanes)
        return {
            "kind": KIND,
            "version": VERSION,
            "rows_read": state.rows_read,
            "lanes": self._job.num_lanes,
            "fingerprint": self.fingerprint,
            "fields": list(CURSOR_FIELDS),
            "sources": [
                {
                    "place": list(source.path),
                    "plan": source.plan.digest,
                    "skipped": sorted(map(list, damaged.items())),
                }
                for source, damaged in zip(self._job.sources, state.damaged, strict=True)
            ],
            "cursors": [
                [state.cursors[lane][number].to_list() for lane in lanes]
                for number in range(len(self._job.sources))
            ],
        }

    def parse_state_dict(self, state_dict: Mapping[str, Any]) -> StreamState:
        """Return the state that `build_state_dict` wrote for this stream."""
        cursors = [
            [LaneCursor(**dict(zip(state_dict["fields"], one, strict=True))) for one in lanes]
            for lanes in state_dict["cursors"]
        ]
        by_lane = {lane: list(of_lane) for lane, of_lane in enumerate(zip(*cursors, strict=True))}
        damaged = [dict(source["skipped"]) for source in state_dict["sources"]]
        return StreamState(int(state_dict["rows_read"]), by_lane, damaged)

    def find_difference(self, state_dict: Mapping[str, Any]) -> str | None:
        """Return what the cursors of a state are not valid for, None if they are valid."""
        if state_dict.get("kind") != KIND:
            return "the checkpoint was trained on data in an index, not on a stream"
        if state_dict["version"] != VERSION:
            return "the checkpoint's stream was dealt to its lanes by another version of titanrun"
        if state_dict["lanes"] != self._job.num_lanes:
            lanes = pluralize(state_dict["lanes"], "lane")
            return f"the checkpoint's stream has {lanes}, the recipe {self._job.num_lanes}"
        if state_dict["fingerprint"] == self.fingerprint:
            return None
        before = [entry["plan"] for entry in state_dict["sources"]]
        if len(before) != len(self._job.sources):
            return "the checkpoint was trained on another number of streams"
        changed = [
            self._describe_other_files(source, digest)
            for source, digest in zip(self._job.sources, before, strict=True)
            if source.plan.digest != digest
        ]
        what = "; ".join(changed) or "the same files, read with other settings"
        return f"the checkpoint was trained on other data: {what}"

    def build_hint(self, state_dict: Mapping[str, Any]) -> str:
        """Return what to do about a difference."""
        lanes = state_dict.get("lanes", self._job.num_lanes)
        return STREAM_HINT if lanes == self._job.num_lanes else LANES_HINT.format(lanes)

    def save_plans(self) -> None:
        """Keep the plans, to compare with when the run is resumed."""
        for source in self._job.sources:
            if self._plan_folder is not None:
                self._plan_folder.mkdir(parents=True, exist_ok=True)
                path = self._plan_folder / source.plan.file_name
                write_file_atomically(path, source.plan.to_bytes())

    def _describe_other_files(self, source: StreamSource, digest: str) -> str:
        """Return how the files of a source differ from those of a plan."""
        path = None if self._plan_folder is None else self._plan_folder / get_plan_name(digest)
        before = None if path is None else read_plan(path)
        if before is None:
            return f"{pluralize(len(source.plan.files), 'file')} now"
        return describe_file_changes(before, source.plan)


def read_plan(path: Path) -> StreamPlan | None:
    """Return the plan in a file, None if there is none or it is damaged."""
    try:
        return StreamPlan.from_bytes(path.read_bytes())
    except (OSError, EOFError, ValueError, LookupError, TypeError, zlib.error):
        return None


def describe_file_changes(before: StreamPlan, now: StreamPlan) -> str:
    """Return the names of added, removed and changed files, at most five each."""
    old = {file.name: file for file in before.files}
    new = {file.name: file for file in now.files}
    groups = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": [
            name for name in new if name in old and has_other_content(new[name], old[name])
        ],
    }
    parts = []
    for verb, names in groups.items():
        if names:
            listed = ", ".join(names[:MAX_LISTED_FILES])
            more = f" and {len(names) - MAX_LISTED_FILES} more" * (len(names) > MAX_LISTED_FILES)
            parts.append(f"{verb} {listed}{more}")
    return ", ".join(parts) or "the files are in another order"


def has_other_content(one: PlanFile, other: PlanFile) -> bool:
    """Return whether two files differ in size or version."""
    return (one.size, one.version) != (other.size, other.version)
