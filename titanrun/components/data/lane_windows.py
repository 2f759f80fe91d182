"""Windows of a lane: consecutive records that are shuffled and packed together."""

from collections.abc import Generator, Iterator
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
        self._num_striped = 0

    def iter_windows(self, start: WindowStart) -> Generator[Window, None, None]:
        """Yield the windows from the one that begins at `start` on, epoch after epoch.

        Raises:
            ProblemsFound: A data problem if a file cannot be read, or an epoch has no window.
        """
        while True:
            is_whole_epoch, count = start == WindowStart(epoch=start.epoch), 0
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
        # one of the lane's own windows begins at `start`, which says how many come before it
        is_inside = start.turn > len(files.whole)
        num_before = (chosen.lane - start.place) % chosen.num_lanes if is_inside else 0
        for turn in range(max(start.turn, len(files.whole)), len(files.whole + files.striped)):
            first = start if turn == start.turn else WindowStart(start.epoch, turn)
            file = self._get_file(files.striped[turn - len(files.whole)])
            end = yield from self._iter_striped_file(
                file, replace(first, window=number), num_before=num_before
            )
            number, num_before = end.window, num_before + end.place
        self._num_striped = num_before

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
        self, file: RecordFile, start: WindowStart, *, num_before: int
    ) -> Generator[Window, None, WindowStart]:
        """Yield the lane's windows of a striped file. Of others, only the size is needed.

        Return the place after the last window of any lane.
        """
        lane, num_lanes = self._settings.lane, self._settings.num_lanes
        offset, window, count = start.offset, Window(start), 0
        is_own = find_window_lane(num_before, start.place, num_lanes) == lane
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
            if is_own:
                yield window
            window, count = Window(find_follower(window.start, is_own=is_own)), 0
            is_own = find_window_lane(num_before, window.start.place, num_lanes) == lane
        if not count:
            return window.start
        if is_own:
            yield window
        return find_follower(window.start, is_own=is_own)

    def _is_full(self, window: Window) -> bool:
        return len(window.records) >= self._settings.window or window.size >= MAX_WINDOW_BYTES

    def _get_file(self, number: int) -> RecordFile:
        return open_record_file(
            self._files, self._plan, number, self._settings.required, self._damaged
        )

    def _build_no_window_error(self) -> ProblemsFound:
        """Build the problem of a lane without windows: all files are striped, and too few."""
        count, num_lanes = self._num_striped, self._settings.num_lanes
        lanes = pluralize(num_lanes, "lane")
        if not count:
            damaged = self._damaged is not None and bool(self._damaged.records)
            return problem_error(
                "data",
                f"lane {self._settings.lane + 1} of {lanes} finds no records in its files"
                + " without those that are damaged" * damaged,
                path=(),
                hint="set fewer training.lanes, or repair the files that the log names"
                if damaged
                else "name files that hold records",
            )
        # a divisor of the lanes divides the global batch too
        fewer = max(number for number in range(1, count + 1) if num_lanes % number == 0)
        return problem_error(
            "data",
            f"the stream has {pluralize(count, 'window')} of up to {self._settings.window} records "
            f"for {lanes}",
            path=(),
            hint=f"set streaming: false, which suits data this small, or training.lanes: {fewer}",
        )


def find_follower(start: WindowStart, *, is_own: bool) -> WindowStart:
    """Return the start of the window of a striped file after that of the lane or of another."""
    return replace(start, place=start.place + 1, window=start.window + int(is_own))
