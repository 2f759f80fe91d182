"""Reports of a process that waits for data from elsewhere, which may take minutes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# shared by all threads, since any of them may wait
_listeners: list[Callable[[str | None], None]] = []
_stop_checks: list[Callable[[], str | None]] = []
_next_step_waits: list[None] = []


class WaitStopped(Exception):  # noqa: N818 - reads as what happened
    """A wait for data that ended because the run shall stop.

    Its message is the name of the signal that asked for it.
    """


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


@contextmanager
def wait_for_next_step() -> Iterator[None]:
    """Mark the block as the wait of all ranks for the data of the next step.

    A WaitStopped that is raised in it on one rank is raised on all.
    """
    _next_step_waits.append(None)
    try:
        yield
    finally:
        _next_step_waits.pop()


def is_waiting_for_next_step() -> bool:
    """Return whether all ranks wait for the data of the next step."""
    return bool(_next_step_waits)


def check_stop() -> None:
    """Raise WaitStopped if a wait within a block of `end_waits_on` shall end."""
    for find_stop in _stop_checks:
        stop_signal = find_stop()
        if stop_signal is not None:
            raise WaitStopped(stop_signal)


@contextmanager
def end_waits_on(find_stop: Callable[[], str | None]) -> Iterator[None]:
    """End the waits within the block soon after `find_stop` returns the name of a signal."""
    _stop_checks.append(find_stop)
    try:
        yield
    finally:
        _stop_checks.remove(find_stop)
