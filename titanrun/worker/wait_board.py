"""What the ranks wait for, so that status.json says it while the run stands still."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from titanrun.distributed.data_waits import on_wait
from titanrun.worker.status_file import HEARTBEAT_SECONDS, StatusFile

COUNT_KEY = "waits/ranks"
SOURCE_KEY = "waits/source"
STOP_KEY = "waits/stop"
# the store is in the process of a rank, which may not answer at the end
JOIN_SECONDS = 5.0


class WaitBoard:
    """Board on which each rank puts what it waits for, and which any rank can read.

    Args:
        store: Store of all ranks, of which a clone is used: a call of another thread may block it.
            None for a single rank.
    """

    def __init__(self, store: dist.Store | None) -> None:
        # the stubs of some torch versions lack clone()
        shared: Any = store
        self._store = None if shared is None else shared.clone()
        self._source: str | None = None
        self._has_shared_stop = False

    def record(self, source: str | None) -> None:
        """Put what this rank waits for on the board, None once it goes on."""
        before, self._source = self._source, source
        if source == before or self._store is None:
            return
        with suppress(dist.DistError):
            if source is not None:
                self._store.set(SOURCE_KEY, source)
            self._store.add(COUNT_KEY, (source is not None) - (before is not None))

    def share_stop(self, stop_signal: str | None) -> None:
        """Put the signal that asks this rank to stop on the board, once."""
        if self._store is not None and stop_signal is not None and not self._has_shared_stop:
            self._has_shared_stop = True
            self._store.set(STOP_KEY, stop_signal)

    def find_stop(self) -> str | None:
        """Return the signal that asks another rank to stop, None if there is none."""
        with suppress(dist.DistError):
            if self._store is not None and self._store.check([STOP_KEY]):
                return str(self._store.get(STOP_KEY).decode())
        return None

    def find_source(self) -> str | None:
        """Return what a rank waits for, None if no rank waits.

        Raises:
            DistError: If the store is gone.
        """
        if self._store is None:
            return self._source
        if self._store.add(COUNT_KEY, 0) == 0:
            return None
        return str(self._store.get(SOURCE_KEY).decode())


@contextmanager
def report_data_waits(
    store: dist.Store | None, status: StatusFile, get_stop: Callable[[], str | None]
) -> Iterator[WaitBoard]:
    """Write into status.json what any rank waits for within the block, and yield the board.

    The signal that `get_stop` returns is shared with the other ranks: it may reach no other one.
    """
    board, has_ended = WaitBoard(store), threading.Event()
    thread = threading.Thread(
        target=watch_board,
        args=(board, status, has_ended, get_stop),
        name="waits for data",
        daemon=True,
    )
    with on_wait(board.record):
        thread.start()
        try:
            yield board
        finally:
            has_ended.set()
            thread.join(JOIN_SECONDS)


def watch_board(
    board: WaitBoard,
    status: StatusFile,
    has_ended: threading.Event,
    get_stop: Callable[[], str | None],
) -> None:
    """Share a stop, and on the first rank write what any rank waits for, until `has_ended`."""
    started: float | None = None
    with suppress(dist.DistError):
        while not has_ended.wait(HEARTBEAT_SECONDS):
            board.share_stop(get_stop())
            if not status.is_main_rank:
                continue
            source = board.find_source()
            if source is not None:
                started = started or time.monotonic()
                status.record_wait(source, seconds=time.monotonic() - started)
            elif started is not None:
                started = None
                status.record_wait(None)
