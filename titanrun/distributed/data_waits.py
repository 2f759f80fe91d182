"""Reports of a process that waits for data from elsewhere, which may take minutes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# shared by all threads, since any of them may wait
_listeners: list[Callable[[str | None], None]] = []


def report_wait(source: str | None) -> None:
    """Report to all listeners what this process waits for, None once it goes on."""
    for listener in _listeners:
        listener(source)


@contextmanager
def on_wait(listener: Callable[[str | None], None]) -> Iterator[None]:
    """Call `listener` at each report within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
