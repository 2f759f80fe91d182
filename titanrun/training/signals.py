"""Signals as requests that the training loop reads between steps. No torch: they are listened for before it is imported."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

# a scheduler's warning, a scheduler's warning by its other name, Ctrl-C
STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAVE = signal.SIGUSR2
SHELL_SIGNAL_BASE = 128


class SignalRequests:
    """While entered, SIGTERM, SIGUSR1 and SIGINT ask for a save and a stop, SIGUSR2 for a save; a second SIGINT stops at once.

    Signals that the launcher holds back until somebody listens are delivered on entering.
    """

    def __init__(self) -> None:
        self.stop_signal: str | None = None
        self._save = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (*STOP, SAVE):
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
    def stop(self) -> bool:
        """Whether the run shall save and stop after the step it is in."""
        return self.stop_signal is not None

    @property
    def exit_code(self) -> int:
        """The shell's convention for a process that the stop signal ended."""
        assert self.stop_signal is not None
        return SHELL_SIGNAL_BASE + signal.Signals[self.stop_signal]

    def agree(self) -> None:
        """Nobody else is to be heard: this is the only process."""

    def take_save(self) -> bool:
        """Whether a save was asked for since the last call."""
        asked, self._save = self._save, False
        return asked

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == SAVE:
            self._save = True
        elif number == signal.SIGINT and self.stop_signal == "SIGINT":
            raise KeyboardInterrupt
        else:
            self.stop_signal = signal.Signals(number).name
