"""One process of the fleet that Ray runs: the messages of `RolloutProcess` as calls of an actor."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from titanrun.config.json_text import parse_json
from titanrun.rl.fleet.fleet_process import STOP_SECONDS, FleetProcess, OnExit, OnMessage

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RayConnection:
    """An actor, and the reference to the result of its loop."""

    actor: Any
    end: Any
    has_ended: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, kw_only=True)
class RayProcess(FleetProcess):
    """Actor of Ray, which ends with this trainer.

    `log_file` is on the actor's machine; what Ray says of its end is in that of this one.

    Args:
        open_actor: starts an actor and its loop, and returns it with the loop's reference.
        find_references: returns the references to published weights.

    Attributes:
        pid: process id of the actor, None before it is known.
    """

    open_actor: Callable[[], tuple[Any, Any]]
    find_references: Callable[[int], Sequence[Any]]
    pid: int | None = None
    _connection: RayConnection | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._connection is not None and not self._connection.has_ended.is_set()

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

    def _open(self) -> Callable[[int, OnMessage, OnExit], None]:
        self._connection = RayConnection(*self.open_actor())
        return partial(self._read, self._connection)

    def _read(
        self,
        connection: RayConnection,
        start: int,
        on_message: OnMessage,
        on_exit: OnExit,
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
