"""Windows of a lane: consecutive records that are shuffled and packed together."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from titanrun.components.data.damaged_files import DamagedFiles, open_record_file
from titanrun.components.data.lane_plan import (
    LaneFiles,
    StreamPlan,
    assign_files,
    find_window_lane,
)
from titanrun.components.data.lane_records import RawRecord, RecordFile, StreamFiles
from titanrun.components.data.spec.file_columns import RequiredColumns
from titanrun.components.data.stream_config import MAX_WINDOW_BYTES
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error


@dataclass(frozen=True, slots=True)
class WindowStart:
    """Place where a window of a lane begins.

    Args:
        epoch: Epoch of the lane.
        turn: Index of the file among those that the lane reads in the epoch.
        record: Index of the first record in its file.
        offset: Offset of the first record in its file, negative if the file cannot be read from
            there.
        window: Index of the window among those of the lane in the epoch.
        place: Index of the window in a striped file, else 0.
    """

    epoch: int = 0
    turn: int = 0
    record: int = 0
    offset: int = 0
    window: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class LocatedRawRecord:
    """Record that is not parsed yet, with its file."""

    file: RecordFile
    raw: RawRecord


@dataclass(slots=True)
class Window:
    """Consecutive records of a lane from `start` on, in the order of the files."""

    start: WindowStart
    records: list[LocatedRawRecord] = field(default_factory=list)
    size: int = 0

    def add(self, file: RecordFile, raw: RawRecord) -> None:
        """Add a record."""
        self.records.append(LocatedRawRecord(file, raw))
        self.size += raw.size


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """Number of a lane, and what decides which records it reads.

    `seed` is None if the stream is not shuffled. `window` is the maximum number of records of a
    window. `required` are the columns that are read, None for all.
    """

    lane: int
    num_lanes: int
    seed: int | None
    repeats: bool
    window: int
    source: int = 0
    required: RequiredColumns | None = None


class WindowReader:
    """Windows of one lane, from any of them on.

    `damaged` are files that are left out from a record on, and receives those that are found. If it
    is None, a damaged file is a problem.
    """

    def __init__(
        self,
        plan: StreamPlan,
        files: StreamFiles,
        settings: LaneSettings,
        damaged: DamagedFiles | None = None,
    ) -> None:
        self._plan, self._files, self._settings = plan, files, settings
        self._damaged = damaged
        self._sizes = [file.size for file in plan.files]
        self._num_passed = 0

    def iter_windows(self, start: WindowStart) -> Iterator[Window]:
        """Yield the windows from the one that begins at `start` on, epoch after epoch.

        Raises:
            ProblemsFound: A data problem if a file cannot be read, or an epoch has no window.
        """
        while True:
            is_whole_epoch, count = start == WindowStart(epoch=start.epoch), 0
            self._num_passed = 0
            for window in self._iter_epoch(start):
                count += 1
                yield window
            if not count and is_whole_epoch:
                raise self._build_no_window_error()
            if not self._settings.repeats:
                return
            start = WindowStart(epoch=start.epoch + 1)

    def _iter_epoch(self, start: WindowStart) -> Iterator[Window]:
        """Yield the windows of an epoch from `start` on."""
        chosen = self._settings
        files = assign_files(
            self._sizes,
            lane=chosen.lane,
            num_lanes=chosen.num_lanes,
            epoch=start.epoch,
            seed=chosen.seed,
        )
        number = start.window
        for window in self._iter_whole_files(files, start):
            yield window
            number = window.start.window + 1
        for stripe in range(max(0, start.turn - len(files.whole)), len(files.striped)):
            turn = len(files.whole) + stripe
            first = (
                start
                if turn == start.turn
                else WindowStart(epoch=start.epoch, turn=turn, window=number)
            )
            for window in self._iter_striped_file(files, stripe, replace(first, window=number)):
                yield window
                number = window.start.window + 1

    def _iter_whole_files(self, files: LaneFiles, start: WindowStart) -> Iterator[Window]:
        """Yield the windows of the whole files, which continue from one file into the next."""
        window = Window(start)
        for turn in range(start.turn, len(files.whole)):
            is_first = turn == start.turn
            record, offset = (start.record, start.offset) if is_first else (0, 0)
            file = self._get_file(files.whole[turn])
            for raw in file.iter_from(record, offset):
                if not window.records:
                    window.start = replace(
                        window.start, turn=turn, record=raw.number, offset=offset
                    )
                window.add(file, raw)
                offset = raw.end
                if self._is_full(window):
                    yield window
                    window = Window(replace(window.start, window=window.start.window + 1))
        if window.records:
            yield window

    def _iter_striped_file(
        self, files: LaneFiles, stripe: int, start: WindowStart
    ) -> Iterator[Window]:
        """Yield the lane's windows of a striped file. Of others, only the size is needed."""
        lane, num_lanes = self._settings.lane, self._settings.num_lanes
        file, offset = self._get_file(files.striped[stripe]), start.offset
        window, count = Window(start), 0
        is_own = find_window_lane(stripe, start.place, num_lanes) == lane
        for raw in file.iter_from(start.record, start.offset):
            if not count:
                window.start = replace(window.start, record=raw.number, offset=offset)
            count, offset = count + 1, raw.end
            if is_own:
                window.add(file, raw)
            else:
                window.size += raw.size
            if count < self._settings.window and window.size < MAX_WINDOW_BYTES:
                continue
            self._num_passed += 1
            if is_own:
                yield window
            follower = replace(
                window.start,
                place=window.start.place + 1,
                window=window.start.window + int(is_own),
            )
            window, count = Window(follower), 0
            is_own = find_window_lane(stripe, follower.place, num_lanes) == lane
        if count:
            self._num_passed += 1
            if is_own:
                yield window

    def _is_full(self, window: Window) -> bool:
        return len(window.records) >= self._settings.window or window.size >= MAX_WINDOW_BYTES

    def _get_file(self, number: int) -> RecordFile:
        return open_record_file(
            self._files, self._plan, number, self._settings.required, self._damaged
        )

    def _build_no_window_error(self) -> ProblemsFound:
        """Build the problem of a lane without windows: all files are striped, and too few."""
        lanes = pluralize(self._settings.num_lanes, "lane")
        if not self._num_passed:
            return problem_error(
                "data",
                f"lane {self._settings.lane + 1} of {lanes} finds no records in its files",
                path=(),
                hint="name files that hold records",
            )
        return problem_error(
            "data",
            f"the stream has {pluralize(self._num_passed, 'window')} for {lanes}",
            path=(),
            hint="set streaming: false, which suits data this small, or training.lanes to "
            f"{self._num_passed} at most",
        )
