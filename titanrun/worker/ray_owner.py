"""Owner of a run's actors: `python -m titanrun.worker.ray_owner RESOLVED ADDRESS LIFELINE LOCK`.

It starts Ray, or joins the cluster at ADDRESS if that is not empty. Then it reads messages of the
trainer as lines of JSON on stdin: `describe`, to which it writes where its Ray is on stdout, `open`
for an actor, `stop`, or the `hello` of a restarted trainer. Ray ends the actors with it. It ends
when the other end of the descriptor LIFELINE is closed and nobody locks the file LOCK.
"""

import json
import os
import sys
import threading
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import ray

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.spec.run_signals import handle_signals, list_run_signals
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.rl.fleet.config import FleetConfig
from titanrun.rl.fleet.named_pipes import wait_for_end
from titanrun.rl.fleet.ray_cluster import open_cluster
from titanrun.rl.fleet.ray_options import build_actor_options
from titanrun.rl.fleet.ray_process import get_object
from titanrun.rl.fleet.rollout_messages import respond_problem
from titanrun.worker.rollout_actor import RolloutActor

# run waits for messages, read_response for answers, and the others for nothing
THREADS = {"run": 1, "responses": 1}


@dataclass(slots=True)
class RayOwner:
    """Actors of a fleet by their numbers.

    Args:
        config: the fleet.
        address: where its Ray is.
        responses: file of the messages to the trainer.
    """

    config: FleetConfig
    address: str
    responses: TextIO
    namespace: str = field(default_factory=lambda: f"titanrun-{uuid.uuid4().hex}")
    actors: dict[int, Any] = field(default_factory=dict)

    def serve(self, requests: Iterable[str]) -> None:
        """Do what trainers ask for until one says `stop`."""
        for line in requests:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a trainer was killed within the line
            if message["do"] == "stop":
                return
            if message["do"] == "hello":
                self._respond({"hello": message["token"]})
            elif message["do"] == "describe":
                self._respond({"address": self.address, "namespace": self.namespace})
            else:
                self._open_actor(message["number"], message["name"])

    def _open_actor(self, number: int, name: str) -> None:
        options = build_actor_options(self.config) | {"name": name, "namespace": self.namespace}
        remote = ray.remote(concurrency_groups=THREADS)(RolloutActor)
        # Ray ends the last one with its only reference
        self.actors[number] = remote.options(**options).remote(get_object)

    def _respond(self, message: dict[str, Any]) -> None:
        self.responses.write(json.dumps(message) + "\n")
        self.responses.flush()


def own_actors(resolved_path: Path, address: str | None, lifeline: int, lock_file: Path) -> int:
    """Own the actors of a run until it ends. Return the exit code."""
    # no process that it starts has the pipes, whose end tells the trainer of its own
    requests, responses = (os.dup(descriptor) for descriptor in (0, 1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(
        target=stop_with_launcher, args=(requests, lifeline, lock_file), daemon=True
    ).start()
    config = load_resolved_text(resolved_path.read_text(encoding="utf-8")).rl
    assert config is not None, "a rule requires it"
    answers = os.fdopen(responses, "w", encoding="utf-8")
    # they often reach all processes of a run
    with handle_signals(list_run_signals(), lambda number, frame: None), ExitStack() as exit_stack:
        try:
            found = open_cluster(address, exit_stack)
        except ProblemsFound as error:
            respond_problem(error, answers)
            return 1
        RayOwner(config.fleet, found, answers).serve(os.fdopen(requests, encoding="utf-8"))
    return 0


def stop_with_launcher(requests: int, lifeline: int, lock_file: Path) -> None:
    """Say `stop` for the launcher and its last trainer when they have ended.

    It has both ends of the pipe, and the trainer may have ended within a line.
    """
    wait_for_end(lifeline, lock_file)
    os.write(requests, b'\n{"do": "stop"}\n')


if __name__ == "__main__":
    sys.exit(
        own_actors(Path(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3]), Path(sys.argv[4]))
    )
