"""One process of the fleet that Ray runs: the messages of `RolloutProcess` as calls of an actor."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from titanrun.config.json_text import parse_json
from titanrun.rl.fleet.rollout_process import STOP_SECONDS, read_last_line

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RayConnection:
    """An actor, and the reference to the result of its loop."""

    actor: Any
    end: Any
    has_ended: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class RayProcess:
    """Actor that generates groups of conversations, with the methods of `RolloutProcess`.

    It ends with this trainer.

    Args:
        number: its number in the fleet.
        open_actor: starts an actor and its loop, and returns it with the loop's reference.
        log_file: file of its stderr on its machine, and of what Ray says of its end on this one.
        starts_left: how often it may be started.
        find_references: returns the references to published weights.
    """

    number: int
    open_actor: Callable[[], tuple[Any, Any]]
    log_file: Path
    starts_left: int
    find_references: Callable[[int], Sequence[Any]]
    running: dict[int, dict[str, Any]] = field(default_factory=dict)
    num_starts: int = 0
    last_message: float = 0.0
    last_choice: int = 0
    pid: int | None = None
    _connection: RayConnection | None = None
    _log_offset: int = 0

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"generator {self.number}"

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._connection is not None and not self._connection.has_ended.is_set()

    def start(
        self,
        on_message: Callable[[int, dict[str, Any]], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """Start an actor, and a thread that passes its messages on.

        Args:
            on_message: called with the number of this start and each message.
            on_exit: called with the number of this start when the actor has ended.
        """
        self.starts_left -= 1
        self.num_starts += 1
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_offset = self.log_file.stat().st_size if self.log_file.is_file() else 0
        self._connection = RayConnection(*self.open_actor())
        self.last_message = time.monotonic()
        threading.Thread(
            target=self._read,
            args=(self._connection, self.num_starts, on_message, on_exit),
            daemon=True,
        ).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, one about weights with references to them.

        An actor that has ended gets nothing: its end is reported elsewhere.
        """
        assert self._connection is not None
        key = message["key"] if message["do"] == "load" else None
        # references within a list are passed on, not resolved
        references = [] if key is None else list(self.find_references(key))
        self._connection.actor.send.remote(json.dumps(message), key, references)

    def kill(self) -> None:
        """End the actor at once. Its end is reported as any other."""
        if self._connection is not None:
            ray.kill(self._connection.actor)

    def close(self) -> None:
        """End the actor: first by a message, then by force."""
        connection = self._connection
        if connection is None:
            return
        self.send({"do": "stop"})
        connection.has_ended.wait(STOP_SECONDS)
        ray.kill(connection.actor)
        connection.has_ended.wait(STOP_SECONDS)
        self._connection = None

    def read_last_stderr_line(self) -> str:
        """Return the last line about this start, which usually names the error."""
        return read_last_line(self.log_file, self._log_offset)

    def _read(
        self,
        connection: RayConnection,
        start: int,
        on_message: Callable[[int, dict[str, Any]], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """Pass each message of an actor on until it ends, then report its end."""
        try:
            self.pid, host = ray.get(connection.actor.locate.remote())
            log.info("%s runs in process %d on %s", self.title, self.pid, host)
            read = connection.actor.read_response.options(concurrency_group="responses")
            while line := ray.get(read.remote()):
                message = parse_json(line)
                assert isinstance(message, dict), "our own program writes objects"
                on_message(start, message)
            ray.get(connection.end)
        except RayError as error:
            with self.log_file.open("a", encoding="utf-8") as errors:
                errors.write(f"{error}\n")
        # one that Ray cannot reach now must not come back
        ray.kill(connection.actor)
        connection.has_ended.set()
        on_exit(start)
