"""Threads that read the next window of each lane while the one before it is tokenized."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from titanrun.components.data.lane_windows import Window

MAX_THREADS = 8
"""Threads of a process. They wait for disks and servers most of the time."""


class WindowPrefetcher:
    """Threads of a process which read windows ahead, one for each lane of each stream."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="stream window")

    def read_ahead(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Return the same windows, of which the first is read from now on.

        Each of the others is read from the moment on at which the one before it is taken. An error
        is raised where its window is taken.
        """
        return self._iter_windows(windows, self._pool.submit(next, windows, None))

    def _iter_windows(
        self, windows: Iterator[Window], upcoming: Future[Window | None]
    ) -> Iterator[Window]:
        while True:
            # the threads may all wait for other servers
            window = next(windows, None) if upcoming.cancel() else upcoming.result()
            if window is None:
                return
            upcoming = self._pool.submit(next, windows, None)
            yield window
