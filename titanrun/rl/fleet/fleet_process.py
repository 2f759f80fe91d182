"""One process of the fleet, whatever starts it and carries its messages."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

MAX_STDERR_CHARS = 200
# seconds that a process gets to end by itself
STOP_SECONDS = 2.0

OnMessage: TypeAlias = Callable[[int, dict[str, Any]], None]
OnExit: TypeAlias = Callable[[int], None]


@dataclass(slots=True, kw_only=True)
class FleetProcess(ABC):
    """Process that generates groups of conversations. It is started by `start`.

    Args:
        number: its number in the fleet.
        log_file: file of its stderr.
        starts_left: how often it may be started.

    Attributes:
        running: groups that it generates, by number.
        num_starts: how often it was started.
        last_message: when it last sent a message.
        last_choice: when the router last chose it, counted in choices.
        is_loading: whether it loads weights and generates nothing.
        has_loaded: whether it has loaded some since its start, and so will load the next at once.
    """

    number: int
    log_file: Path
    starts_left: int
    running: dict[int, dict[str, Any]] = field(default_factory=dict)
    num_starts: int = 0
    last_message: float = 0.0
    last_choice: int = 0
    is_loading: bool = False
    has_loaded: bool = False
    _log_offset: int = 0

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"generator {self.number}"

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""

    @property
    def may_return(self) -> bool:
        """Whether it runs, or may run again."""
        return self.is_alive or self.starts_left > 0

    def admit(self) -> None:
        """Count as alive from now on, if it says so itself by a message `connected`."""
        raise AssertionError("it is alive from its start on")

    def expect_load(self) -> None:
        """Count as loading from now on unless it still has something to do first.

        One that generates says itself when it loads.
        """
        self.is_loading = self.has_loaded and not self.running

    def note_loading(self, *, is_loading: bool) -> None:
        """Note what it says about its weights."""
        self.is_loading = is_loading
        self.has_loaded = self.has_loaded or not is_loading

    def start(self, on_message: OnMessage, on_exit: OnExit) -> None:
        """Start the process or find it again, and start a thread that passes its messages on.

        Args:
            on_message: called with the number of this start and each message.
            on_exit: called with the number of this start when the process has ended.

        Raises:
            OSError: the program cannot be started.
        """
        self.starts_left -= 1
        self.num_starts += 1
        self.is_loading = self.has_loaded = False
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_offset = self.log_file.stat().st_size if self.log_file.is_file() else 0
        read = self._open()
        self.last_message = time.monotonic()
        threading.Thread(
            target=read, args=(self.num_starts, on_message, on_exit), daemon=True
        ).start()

    @abstractmethod
    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. A process that has ended gets nothing: its end is reported elsewhere."""

    @abstractmethod
    def kill(self) -> None:
        """End the process at once. Its end is reported as any other."""

    @abstractmethod
    def close(self) -> None:
        """End the process: first by a message, then by force."""

    def read_last_stderr_line(self) -> str:
        """Return the last stderr line since the last start, which usually names the error."""
        if not self.log_file.is_file():
            return ""
        with self.log_file.open("rb") as errors:
            errors.seek(self._log_offset)
            lines = errors.read().decode("utf-8", errors="replace").split("\n")
        return next(
            (line.strip()[:MAX_STDERR_CHARS] for line in reversed(lines) if line.strip()), ""
        )

    @abstractmethod
    def _open(self) -> Callable[[int, OnMessage, OnExit], None]:
        """Connect to a process that is started or found.

        Return the function of the thread, which passes on its messages and its end.
        """
