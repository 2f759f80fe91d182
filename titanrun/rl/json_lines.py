"""A program that answers: one JSON object a line on its stdin, one on its stdout."""

import json
import logging
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.config.problems import DataPath, fail

log = logging.getLogger(__name__)

# of a line that is no answer, in messages
SHOWN = 80
# of what it wrote to stderr
LONGEST_WORDS = 200


class NoAnswer(Exception):
    """A program died, took too long, or wrote what is no JSON object."""


class JsonLines:
    """Starts a program when it is first asked, and again when it fails.

    Args:
        command: the program and its arguments.
        timeout_seconds: how long one answer may take.
        max_restarts: how often it is started again.
        log: the file that its stderr goes to.
        place: of the command in the recipe, for problems.
        title: what messages call it; None: its first word.
        environment: its variables; None: those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        max_restarts: int,
        log: Path,
        place: DataPath,
        title: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command, self.timeout, self.log, self.place = (
            list(command),
            timeout_seconds,
            log,
            place,
        )
        self.title, self.environment = title or self.command[0], environment
        self.starts_left = max_restarts + 1
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        # where in the log this start's lines begin
        self._written = 0

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The program's answer. Raises NoAnswer where it gives none; ProblemsFound where it cannot be started, or failed too often."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            self._end(f"{self.title} gave no answer within {self.timeout:g} seconds")
        except OSError:
            self._end(f"{self.title} ended")
        if line is None:
            self._end(f"{self.title} ended with exit code {process.wait()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NoAnswer(f"{self.title} wrote what is no JSON object: {line.strip()[:SHOWN]!r}")
        return answer

    def close(self) -> None:
        """Ends the program."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            if self.starts_left == 0:
                message = f"{self.title} failed too often; what it wrote to stderr is in {self.log}"
                raise fail(
                    "data",
                    message,
                    path=self.place,
                    help="try it by hand with a line of JSON on its stdin",
                )
            self.starts_left -= 1
            self.log.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self.log.open("a", encoding="utf-8") as errors:
                    self._written = errors.tell()
                    self._process = subprocess.Popen(
                        self.command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        encoding="utf-8",
                        env=self.environment,
                    )
            except OSError as error:
                raise fail(
                    "data",
                    f"'{self.command[0]}' cannot be started: {error.strerror}",
                    path=self.place,
                ) from None
            self._lines = queue.Queue()
            threading.Thread(target=pass_on, args=(self._process, self._lines), daemon=True).start()
        return self._process

    def _end(self, reason: str) -> None:
        self.close()
        words = self._last_words()
        log.warning(
            "%s; %d starts are left; %s",
            reason,
            self.starts_left,
            f"it wrote to {self.log}: {words}" if words else "it wrote nothing",
        )
        raise NoAnswer(reason)

    def _last_words(self) -> str:
        """The last line that the program wrote to stderr since it was started, where errors say what they are."""
        with self.log.open("rb") as errors:
            errors.seek(self._written)
            lines = errors.read().decode("utf-8", errors="replace").split("\n")
        return next((line.strip()[:LONGEST_WORDS] for line in reversed(lines) if line.strip()), "")


def pass_on(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    """Puts every line that a program writes into a queue, and None after the last."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:
        pass  # closed while it was read
    lines.put(None)
