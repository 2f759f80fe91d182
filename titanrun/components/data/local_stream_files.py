"""Local files of a stream, which must stay as they were when the stream was opened."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from titanrun.components.data.lane_plan import PlanFile, StreamPlan, leave_out_empty_files
from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.data.source_faults import SourceFault, build_fault_problem
from titanrun.components.data.spec.data_files import SUFFIXES, resolve_data_files
from titanrun.config.problems import ProblemsFound, problem_error

VERSION_BYTES = 64 * 2**10
"""Bytes at the beginning and the end of a file that its version is a hash of."""


class CountedFile(io.FileIO):
    """File of the size that it has at first, whose bytes are counted once it has `counts`."""

    counts: ReadCounts | None = None

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.size = os.fstat(self.fileno()).st_size

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, and return the number of bytes.

        Raises:
            ProblemsFound: A data problem if another program has shortened the file.
        """
        position = self.tell()
        # not what another program appends: it is no part of the plan
        wanted = memoryview(buffer).cast("B")[: max(0, self.size - position)]
        count = super().readinto(wanted)
        if wanted and not count:
            reason = f"it ends after {position:,} of {self.size:,} bytes"
            fault = SourceFault("changed", reason)
            raise build_fault_problem(fault, f"'{self.name}'", ("path",))
        if self.counts is not None:
            self.counts.num_bytes += count
        return count


@dataclass(frozen=True, slots=True)
class LocalStreamFiles:
    """Files on this machine, or on a file system that it shares.

    `counts` receives the bytes that are read.
    """

    counts: ReadCounts = field(default_factory=ReadCounts, compare=False)

    def open(self, file: PlanFile) -> BinaryIO:
        """Open a file.

        Raises:
            ProblemsFound: A data problem if it is gone or has changed since the stream was opened.
        """
        try:
            counted = CountedFile(file.location)
        except FileNotFoundError:
            fault = SourceFault("gone", "there is no such file")
            raise build_fault_problem(fault, f"'{file.location}'", ("path",)) from None
        except OSError as error:
            raise cannot_open_error(file.location, error) from None
        opened, size = io.BufferedReader(counted), counted.size
        if (size, compute_file_version(opened, size)) == (file.size, file.version):
            counted.counts = self.counts
            return opened
        opened.close()
        fault = SourceFault("changed", "it has changed since the run began")
        raise build_fault_problem(fault, f"'{file.location}'", ("path",))


def plan_local_files(path: str, suffixes: Sequence[str] = SUFFIXES) -> StreamPlan:
    """Return the plan of the files at a file name, a folder or a glob, sorted by name.

    Raises:
        ProblemsFound: A data problem if nothing readable is found.
    """
    files = resolve_data_files(path, suffixes)
    folder = Path(os.path.commonpath([file.absolute().parent for file in files]))
    described = []
    for file in files:
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                version = compute_file_version(opened, size)
        except OSError as error:
            raise cannot_open_error(str(file), error) from None
        name = file.absolute().relative_to(folder).as_posix()
        described.append(PlanFile(name, size, version, str(file)))
    return StreamPlan(tuple(leave_out_empty_files(described)))


def compute_file_version(opened: BinaryIO, size: int) -> str:
    """Return a hash of the beginning and the end of a file; afterwards it is at the beginning."""
    digest = xxhash.xxh3_64(opened.read(VERSION_BYTES))
    opened.seek(max(0, size - VERSION_BYTES))
    digest.update(opened.read(VERSION_BYTES))
    opened.seek(0)
    return digest.hexdigest()


def cannot_open_error(location: str, error: OSError) -> ProblemsFound:
    """Build the problem of a file that cannot be opened."""
    return problem_error(
        "data",
        f"'{location}' cannot be read: {error.strerror}",
        path=("path",),
        hint="check the file and its permissions",
    )
