"""Heartbeats of work that may take hours, for the watchdog of a rank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# shared by all threads, since any of them may do the work
_listeners: list[Callable[[], None]] = []


def send_heartbeat() -> None:
    """Report progress to all listeners. This costs nothing without listeners."""
    for listener in _listeners:
        listener()


@contextmanager
def on_heartbeat(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` at each heartbeat within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
