"""The trainer's side of the process that owns Ray and the actors of a fleet."""

import queue
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import ray

from titanrun.config.problems import problem_error
from titanrun.rl.fleet.ray_cluster import ADDRESS_PATH, build_address_error, join_cluster
from titanrun.rl.fleet.rollout_process import RolloutProcess

# between two questions whether Ray knows an actor, and for how long
POLL_SECONDS = 0.05
OPEN_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class ActorOwner(RolloutProcess):
    """Process that starts Ray, or joins a cluster, and owns the actors of a fleet.

    Ray ends an actor with its owner: so they outlive a trainer that is restarted, which finds them
    by their names, but not the run, in whatever way it ends.
    """

    namespace: str = ""
    _answers: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)

    @property
    def title(self) -> str:
        """Name in messages."""
        return "the owner of Ray's actors"

    def join(self, exit_stack: ExitStack) -> None:
        """Start or find the process, and join its Ray until the exit stack closes.

        Raises:
            ProblemsFound: no cluster answers, or none can be started.
        """
        self.start(self._note_answer, lambda start: self._answers.put(None))
        exit_stack.callback(self.close)
        self.send({"do": "describe"})
        answer = self._answers.get()
        if answer is None:
            raise build_address_error(f"its owner has ended: {self.read_last_stderr_line()}")
        if "problem" in answer:
            raise problem_error("usage", answer["problem"], path=ADDRESS_PATH, hint=answer["hint"])
        self.namespace = answer["namespace"]
        join_cluster(answer["address"], exit_stack)

    def find_actor(self, number: int) -> Any | None:
        """Return the actor that an earlier trainer has opened under this number."""
        named = ray.util.list_named_actors(all_namespaces=True)
        own = [each["name"] for each in named if each["namespace"] == self.namespace]
        name = next((name for name in own if name.startswith(build_prefix(number))), None)
        return None if name is None else self._get_actor(name)

    def open_actor(self, number: int, is_needed: Callable[[], bool]) -> Any:
        """Let the process open an actor, instead of an earlier one with this number.

        Args:
            number: the number of the actor.
            is_needed: whether to wait for it still. After the end of the run, a question would
                start another Ray.

        Raises:
            OSError: it does not.
        """
        name = build_prefix(number) + uuid.uuid4().hex
        self.send({"do": "open", "number": number, "name": name})
        end = time.monotonic() + OPEN_SECONDS
        while is_needed() and self.is_alive and time.monotonic() < end:
            actor = self._get_actor(name)
            if actor is not None:
                return actor
            time.sleep(POLL_SECONDS)
        raise OSError(f"{self.title} does not open one: {self.read_last_stderr_line()}")

    def _note_answer(self, start: int, message: dict[str, Any]) -> None:
        # one that is found again says how many groups it dropped, but only actors have some
        if "discarded" not in message:
            self._answers.put(message)

    def _get_actor(self, name: str) -> Any | None:
        try:
            return ray.get_actor(name, namespace=self.namespace)
        except ValueError:  # Ray does not know it, or not any more
            return None


def build_prefix(number: int) -> str:
    """Return what the name of an actor with this number begins with."""
    return f"generator-{number}-"
