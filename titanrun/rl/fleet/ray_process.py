"""One process of the fleet that Ray runs: the messages of `RolloutProcess` as calls of an actor."""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import OwnerDiedError, RayError

from titanrun.config.json_text import parse_json
from titanrun.rl.fleet.actor_owner import ActorOwner
from titanrun.rl.fleet.fleet_process import STOP_SECONDS, FleetProcess, OnExit, OnMessage
from titanrun.rl.fleet.rollout_messages import count_done_groups

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ActorLink:
    """One start of a process: an actor, once Ray knows it, and its end.

    The actor repeats `token`. What it says before is for an earlier trainer.
    """

    actor: Any = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_admitted: bool = False
    is_closed: bool = False
    has_ended: threading.Event = field(default_factory=threading.Event)

    def kill(self) -> None:
        """End the actor at once, also one that Ray does not know yet."""
        self.is_closed = True
        if self.actor is not None:
            ray.kill(self.actor)


@dataclass(slots=True, kw_only=True)
class RayProcess(FleetProcess):
    """Actor of Ray, which outlives this trainer if that is started again.

    `log_file` is on the actor's machine; what Ray says of its end is in that of this one.

    Args:
        owner: opens actors and finds those of an earlier trainer.
        run: starts the loop of an actor that has none, and returns the reference to its end.
        find_references: returns the references to published weights.

    Attributes:
        pid: process id of the actor, None before it is known.
    """

    owner: ActorOwner
    run: Callable[[Any], Any]
    find_references: Callable[[int], Sequence[Any]]
    pid: int | None = None
    _link: ActorLink | None = None

    @property
    def is_alive(self) -> bool:
        """Whether Ray knows the actor, and so does the fleet, and it has not ended."""
        link = self._link
        return link is not None and link.is_admitted and not link.has_ended.is_set()

    @property
    def may_return(self) -> bool:
        """Whether it runs, or may run again."""
        is_starting = self._link is not None and not self._link.has_ended.is_set()
        return is_starting or self.starts_left > 0

    def admit(self) -> None:
        """Count as alive from now on."""
        if self._link is not None:
            self._link.is_admitted = True

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, one about weights with references to them.

        One that is not alive gets nothing: the fleet knows when it is.
        """
        if not self.is_alive:
            return
        assert self._link is not None
        key = message["key"] if message["do"] == "load" else None
        # references within a list are passed on, not resolved
        references = [] if key is None else list(self.find_references(key))
        self._link.actor.send.remote(json.dumps(message), key, references)

    def kill(self) -> None:
        """End the actor at once. Its end is reported as any other."""
        if self._link is not None:
            self._link.kill()

    def close(self) -> None:
        """End the actor: first by a message, then by force."""
        link = self._link
        if link is None:
            return
        if self.is_alive:
            self.send({"do": "stop"})
            link.has_ended.wait(STOP_SECONDS)
        link.kill()
        link.has_ended.wait(STOP_SECONDS)
        self._link = None

    def _open(self) -> Callable[[int, OnMessage, OnExit], None]:
        self._link = ActorLink()
        return partial(self._serve, self._link)

    def _serve(self, link: ActorLink, start: int, on_message: OnMessage, on_exit: OnExit) -> None:
        """Open or find the actor, pass its messages on until it ends, then report its end."""
        try:
            # only the first start of a trainer can find one
            found = self.owner.find_actor(self.number) if start == 1 else None
            link.actor = found or self.owner.open_actor(self.number, lambda: not link.is_closed)
            end = self.run(link.actor)
            link.actor.attach.remote(link.token)
            if not link.is_closed:
                # one that waits for room in the cluster gets no groups
                self.pid, host = ray.get(link.actor.locate.remote())
                on_message(start, {"connected": True})
                verb = "runs" if found is None else "goes on"
                log.info("%s %s in process %d on %s", self.title, verb, self.pid, host)
                self._pass_on(link, start, on_message)
                ray.get(end)
        except (RayError, OSError) as error:
            with self.log_file.open("a", encoding="utf-8") as errors:
                errors.write(f"{error}\n")
        if link.actor is not None:
            # one that Ray cannot reach now must not come back
            ray.kill(link.actor)
        link.has_ended.set()
        on_exit(start)

    def _pass_on(self, link: ActorLink, start: int, on_message: OnMessage) -> None:
        """Pass on each message for this trainer until the last.

        Of what it says to an earlier trainer only the number of groups that are done is passed on.
        """
        read = link.actor.read_response.options(concurrency_group="responses")
        is_known, num_discarded = False, 0
        while line := ray.get(read.remote(link.token)):
            message = parse_json(line)
            assert isinstance(message, dict), "our own program writes objects"
            if message.get("hello") == link.token:
                is_known, message = True, {"discarded": num_discarded}
            if is_known or "problem" in message:
                on_message(start, message)
            else:
                num_discarded += count_done_groups(message)


def get_object(reference: Any) -> Any:
    """Return the object of a reference.

    Raises:
        KeyError: who has put it into the store has ended.
    """
    try:
        return ray.get(reference)
    except OwnerDiedError:
        raise KeyError(reference) from None
