"""One process of the fleet: a line of JSON for each message, in both directions."""

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json

log = logging.getLogger(__name__)

MAX_STDERR_CHARS = 200
# seconds that a process gets to end by itself
STOP_SECONDS = 2.0


@dataclass(slots=True)
class RolloutProcess:
    """Process that generates groups of conversations. It is started by `start`.

    Args:
        number: its number in the fleet.
        command: the program and its arguments.
        log_file: file of its stderr.
        environment: environment variables.
        starts_left: how often it may be started.
    """

    number: int
    command: Sequence[str]
    log_file: Path
    environment: Mapping[str, str]
    starts_left: int
    running: dict[int, dict[str, Any]] = field(default_factory=dict)
    num_starts: int = 0
    last_message: float = 0.0
    last_choice: int = 0
    _process: "subprocess.Popen[str] | None" = None
    _log_offset: int = 0

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"generator {self.number}"

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Id of the process, None without one."""
        return None if self._process is None else self._process.pid

    def start(
        self,
        on_message: Callable[[int, dict[str, Any]], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """Start the process, and a thread that passes its messages on.

        Args:
            on_message: called with the number of this start and each message.
            on_exit: called with the number of this start when the process has ended.

        Raises:
            OSError: the program cannot be started.
        """
        self.starts_left -= 1
        self.num_starts += 1
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("a", encoding="utf-8") as errors:
            self._log_offset = errors.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=dict(self.environment),
            )
        self.last_message = time.monotonic()
        threading.Thread(
            target=read_messages,
            args=(self._process, self.num_starts, on_message, on_exit),
            daemon=True,
        ).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. A process that has ended gets nothing: its end is reported elsewhere."""
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End the process at once. Its end is reported as any other."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process: first by the end of its input, then by force."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

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


def read_messages(
    process: "subprocess.Popen[str]",
    start: int,
    on_message: Callable[[int, dict[str, Any]], None],
    on_exit: Callable[[int], None],
) -> None:
    """Pass each message of a process on until it ends, then report its end."""
    assert process.stdout is not None
    with suppress(ValueError):  # closed during reading
        for line in process.stdout:
            message = parse_json(line)
            assert isinstance(message, dict), "our own program writes objects"
            on_message(start, message)
    process.wait()
    process.stdout.close()
    on_exit(start)
