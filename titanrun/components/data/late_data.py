"""Signs of life of ranks that wait for data."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from titanrun.distributed.data_waits import report_wait
from titanrun.distributed.heartbeat import send_heartbeat

HEARTBEAT_SECONDS = 1.0
LATE_SECONDS = 30.0
"""Time without data after which it is reported, as long as a server may send nothing."""
log = logging.getLogger(__name__)


@contextmanager
def keep_heartbeats(seconds: float) -> Iterator[None]:
    """Send heartbeats within the block, at most for `seconds`: another rank may be what waits."""
    is_done = Event()

    def send() -> None:
        end = time.monotonic() + seconds
        while not is_done.wait(HEARTBEAT_SECONDS) and time.monotonic() < end:
            send_heartbeat()

    thread = Thread(target=send, name="waiting for data", daemon=True)
    if seconds > 0:
        thread.start()
    try:
        yield
    finally:
        is_done.set()


@contextmanager
def report_late_data(source: str | None) -> Iterator[None]:
    """Report that this process waits for `source` if the block takes long, None never.

    The caller reports the end of the wait.
    """
    is_done = Event()

    def watch() -> None:
        if not is_done.wait(LATE_SECONDS):
            log.warning("no data from %s for %.0f s; waiting", source, LATE_SECONDS)
            report_wait(source)

    thread = Thread(target=watch, name="late data", daemon=True)
    if source is not None:
        thread.start()
    try:
        yield
    finally:
        is_done.set()
        if source is not None:
            # a report after the end of the wait would stay
            thread.join()
