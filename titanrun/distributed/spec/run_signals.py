"""Signals that ask a run to stop or to save."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

# a scheduler's warning (two conventions), Ctrl-C, a closed terminal, the limit of CPU time
STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGXCPU,
)
SAVE_SIGNAL = signal.SIGUSR2
# what a run does when it is asked to stop
STOPS_BEFORE_STEP = "stopping before the first step"
STOPS_AFTER_STEP = "stopping after this step, then saving"


def list_run_signals() -> list[signal.Signals]:
    """Return the signals that a run handles: all, but SIGHUP only if nohup does not ignore it."""
    return [
        number
        for number in (*STOP_SIGNALS, SAVE_SIGNAL)
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]


def list_stop_signals() -> list[signal.Signals]:
    """Return those of them that stop a run."""
    return [number for number in list_run_signals() if number != SAVE_SIGNAL]


def format_stop_notice(number: signal.Signals, effect: str = STOPS_AFTER_STEP) -> str:
    """Return the line that answers a first signal; `effect` is what the signal does."""
    if number != signal.SIGINT:
        return f"{number.name}: {effect}"
    lost = ", without saving" if effect == STOPS_AFTER_STEP else ""
    return f"{effect}; Ctrl-C again stops at once{lost}"


@contextmanager
def handle_signals(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Call the handler for these signals within the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def ignore_run_signals() -> None:
    """Ignore all of them in a helper process, which its trainer needs for the save.

    They often reach all processes of a run. The trainer ends the process.
    """
    for number in list_run_signals():
        signal.signal(number, signal.SIG_IGN)
