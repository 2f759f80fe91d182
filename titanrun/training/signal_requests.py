"""Unix signals as requests that the training loop reads between steps.

Without torch, because signal handlers are installed before torch is imported.
"""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from titanrun.distributed.spec.run_signals import (
    SAVE_SIGNAL,
    STOPS_BEFORE_STEP,
    list_run_signals,
)

SHELL_SIGNAL_BASE = 128


def get_stop_exit_code(stop_signal: str) -> int:
    """Return the exit code of a process that a signal ended, after the shell's convention."""
    return SHELL_SIGNAL_BASE + signal.Signals[stop_signal]


class SignalRequests:
    """Context manager that turns signals into requests to save or stop.

    SIGTERM, SIGUSR1, SIGINT, SIGHUP and SIGXCPU request a save and a stop, SIGUSR2 requests a save.
    A second SIGINT stops immediately. SIGHUP stays ignored under nohup. Signals that the launcher
    blocks until handlers are installed are delivered on entering.
    """

    def __init__(self) -> None:
        self.stop_signal: str | None = None
        # known during a call of torch too, after which alone Python calls the handlers
        self.arrived_stop: str | None = None
        # what a request to stop does at this time, for the line that answers it
        self.stop_effect = STOPS_BEFORE_STEP
        self._save = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in list_run_signals():
            self._previous[number] = signal.signal(number, self._receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._previous)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @property
    def should_stop(self) -> bool:
        """Whether the run shall save and stop after the current step."""
        return self.stop_signal is not None

    def find_stop(self) -> str | None:
        """Return the signal that asks this process to stop, None if there is none.

        Any thread may call this, during a call of torch too.
        """
        return self.stop_signal or self.arrived_stop

    def sync(self) -> None:
        """Do nothing: this is the only process."""

    def pop_save_request(self) -> bool:
        """Return whether a save was requested since the last call."""
        asked, self._save = self._save, False
        return asked

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == SAVE_SIGNAL:
            self._save = True
        elif number == signal.SIGINT and self.stop_signal == "SIGINT":
            raise KeyboardInterrupt
        else:
            self.stop_signal = signal.Signals(number).name
