"""Windows of a stream of few records, counted before a run."""

from contextlib import closing
from pathlib import Path

from titanrun.components.data.damaged_files import DamagedFiles
from titanrun.components.data.lane_windows import LaneSettings, WindowReader, WindowStart
from titanrun.components.data.local_stream_files import LocalStreamFiles, plan_local_files
from titanrun.components.data.spec.file_formats import check_is_text
from titanrun.components.data.stream_config import StreamFields

MAX_CHECKED_BYTES = 32 * 2**20
"""Size of all files up to which their records are counted: some tenths of a second."""


def check_last_lane(config: StreamFields, path: str, num_lanes: int) -> None:
    """Read the first window of the lane that gets the last of few windows.

    Windows are dealt to the lanes in turn, so that the others have one if it does. Nothing is read
    of larger files.

    Args:
        config: Config of the stream.
        path: Where its files are, on this machine.
        num_lanes: Number of lanes.

    Raises:
        ProblemsFound: A data problem if there are fewer windows than lanes, or a file cannot be
            read.
    """
    plan = plan_local_files(path, config.stream_suffixes)
    for file in plan.files:
        check_is_text(Path(file.location))
    window = config.resolve_window()
    if window is None or sum(file.size for file in plan.files) > MAX_CHECKED_BYTES:
        return
    settings = LaneSettings(
        lane=num_lanes - 1, num_lanes=num_lanes, seed=None, repeats=False, window=window
    )
    damaged = DamagedFiles() if config.skips_bad_files else None
    reader = WindowReader(plan, LocalStreamFiles(), settings, damaged)
    with closing(reader.iter_windows(WindowStart())) as windows:
        next(windows, None)
