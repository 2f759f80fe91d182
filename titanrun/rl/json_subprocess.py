"""Subprocess with a JSON protocol: one object per line on stdin and on stdout."""

import json
import logging
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from titanrun.config.json_text import parse_json
from titanrun.config.problems import DataPath, problem_error

log = logging.getLogger(__name__)

RUN_BY_HAND = "run it manually with a line of JSON on its stdin"
# characters of an invalid line shown in messages
MAX_SHOWN_CHARS = 80
# characters of stderr shown in messages
MAX_STDERR_CHARS = 200


class NoResponseError(Exception):
    """A program ended, timed out, or wrote something other than a JSON object."""


class JsonSubprocess:
    """Program that is started by the first request and restarted after failures.

    Args:
        command: the program and its arguments.
        timeout_seconds: longest duration of a response.
        max_restarts: number of restarts.
        log: the file of its stderr.
        recipe_path: path of the command in the recipe, for problems.
        title: name in messages. None: the first word of the command.
        environment: environment variables. None: those of this process.
        help_text: what to do if it fails too often.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        max_restarts: int,
        log: Path,
        recipe_path: DataPath,
        title: str | None = None,
        environment: Mapping[str, str] | None = None,
        help_text: str = RUN_BY_HAND,
    ) -> None:
        self.command, self.timeout, self.log, self.recipe_path = (
            list(command),
            timeout_seconds,
            log,
            recipe_path,
        )
        self.title, self.environment = title or self.command[0], environment
        self.help_text = help_text
        self.starts_left = max_restarts + 1
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        # offset of this start's lines in the log
        self._log_offset = 0

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the program's response.

        Raises:
            NoResponseError: the program gave no valid response.
            ProblemsFound: the program cannot be started, or failed too often.
        """
        process = self._ensure_started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            self._close_and_raise(f"{self.title} did not respond within {self.timeout:g} seconds")
        except OSError:
            self._close_and_raise(f"{self.title} ended")
        if line is None:
            self._close_and_raise(f"{self.title} ended with exit code {process.wait()}")
        try:
            answer = parse_json(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NoResponseError(
                f"{self.title} did not write a JSON object: {line.strip()[:MAX_SHOWN_CHARS]!r}"
            )
        return answer

    def close(self) -> None:
        """Stop the program."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    # closing flushes what the dead program did not read
                    with suppress(BrokenPipeError):
                        stream.close()
            self._process = None

    def _ensure_started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            if self.starts_left == 0:
                message = f"{self.title} failed too often, its stderr is in {self.log}"
                raise problem_error("data", message, path=self.recipe_path, hint=self.help_text)
            self.starts_left -= 1
            self.log.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self.log.open("a", encoding="utf-8") as errors:
                    self._log_offset = errors.tell()
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
                raise problem_error(
                    "data",
                    f"'{self.command[0]}' cannot be started: {error.strerror}",
                    path=self.recipe_path,
                ) from None
            self._lines = queue.Queue()
            threading.Thread(
                target=read_lines_into_queue, args=(self._process, self._lines), daemon=True
            ).start()
        return self._process

    def _close_and_raise(self, reason: str) -> NoReturn:
        self.close()
        words = self._read_last_stderr_line()
        log.warning(
            "%s, %d starts left, %s",
            reason,
            self.starts_left,
            f"last line of {self.log}: {words}" if words else "no stderr output",
        )
        raise NoResponseError(reason)

    def _read_last_stderr_line(self) -> str:
        """Return the last stderr line since the start, which usually names the error."""
        with self.log.open("rb") as errors:
            errors.seek(self._log_offset)
            lines = errors.read().decode("utf-8", errors="replace").split("\n")
        return next(
            (line.strip()[:MAX_STDERR_CHARS] for line in reversed(lines) if line.strip()), ""
        )


def read_lines_into_queue(
    process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]"
) -> None:
    """Put every stdout line of a program into a queue, and None after the last."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:
        pass  # closed during reading
    lines.put(None)
