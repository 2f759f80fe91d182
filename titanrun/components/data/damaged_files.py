"""Damaged files of a stream, which are left out from a record on."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from titanrun.components.data.lane_plan import StreamPlan
from titanrun.components.data.lane_records import RecordFile, StreamFiles
from titanrun.components.data.source_faults import SourceFault, build_fault_problem
from titanrun.components.data.spec.file_columns import RequiredColumns
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound

MAX_LISTED_FILES = 5
log = logging.getLogger(__name__)

DamagedRecords = Mapping[int, int]
"""First record of each damaged file that is left out, by the index of the file in the plan."""


@dataclass(slots=True)
class DamagedFiles:
    """Damaged files of one stream.

    A file is left out from the record on at which it was found damaged, in later epochs and after a
    resume too, without reading what follows again.
    """

    records: dict[int, int] = field(default_factory=dict)

    def find_end(self, number: int) -> int | None:
        """Return the record from which on a file is left out, None if it is whole."""
        return self.records.get(number)

    def leave_out(self, number: int, record: int, error: ProblemsFound) -> None:
        """Leave a file out from a record on."""
        if number not in self.records:
            self.records[number] = record
            lost = "the rest of the file" if record else "the whole file"
            log.warning("%s; %s is left out", error.problems[0].message, lost)


def open_record_file(
    files: StreamFiles,
    plan: StreamPlan,
    number: int,
    required: RequiredColumns | None,
    damaged: DamagedFiles | None,
) -> RecordFile:
    """Return the records of a file of a plan, without those that are left out."""
    if damaged is None:
        return RecordFile(files, plan.files[number], required)
    return RecordFile(
        files,
        plan.files[number],
        required,
        end=damaged.find_end(number),
        on_damage=partial(damaged.leave_out, number),
    )


def check_damaged_files(
    records: DamagedRecords, plan: StreamPlan, *, max_files: int, path: DataPath
) -> None:
    """Raise a data problem if more files of a stream are damaged than may be."""
    if len(records) <= max_files:
        return
    fault = SourceFault(
        "damaged",
        f"more are damaged than max_bad_files {max_files} allows: {list_files(records, plan)}",
    )
    raise build_fault_problem(
        fault,
        pluralize(len(records), "file"),
        (*path, "max_bad_files"),
        hint="fetch or write them again, or allow more",
    )


def list_files(records: DamagedRecords, plan: StreamPlan) -> str:
    """Return the names of damaged files, at most five, each with its first damaged record."""
    listed = [
        f"'{plan.files[number].location}' from record {record + 1} on"
        for number, record in sorted(records.items())
    ]
    more = f" and {len(listed) - MAX_LISTED_FILES} more" * (len(listed) > MAX_LISTED_FILES)
    return ", ".join(listed[:MAX_LISTED_FILES]) + more


def join_damaged(found: Sequence[Sequence[DamagedRecords]]) -> list[dict[int, int]]:
    """Return the damaged files of each stream that any reader has found."""
    return [
        {number: record for one in reversed(of_stream) for number, record in one.items()}
        for of_stream in zip(*found, strict=True)
    ]
