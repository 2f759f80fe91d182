"""One process of an RL run's fleet: `python -m titanrun.worker.rollout_worker RESOLVED NUMBER`.

It reads messages as lines of JSON on stdin: weights to load, groups to generate, or `drop`. After
each turn it writes the groups that are done on stdout, with the time and the tokens of the turn.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.device import select_device
from titanrun.distributed.rank_env import RankInfo
from titanrun.distributed.spec.run_signals import ignore_run_signals
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_types import RolloutGroup, rollout_group_from_dict
from titanrun.rl.weight_sync.transport import WeightTransport
from titanrun.worker.build.build_data import build_tokenizer
from titanrun.worker.build.build_engine import set_determinism
from titanrun.worker.build.build_rollouts import (
    WEIGHTS_FOLDER,
    build_generator_resources,
    build_rollout_runner,
    build_weight_transport,
)
from titanrun.worker.worker_job import WorkerJob


@dataclass(slots=True)
class RolloutWorker:
    """Conversations of this process: those under way, and messages that nobody has read yet.

    Weights are loaded between two turns, always before groups that came after them.
    """

    runner: RolloutRunner
    transport: WeightTransport
    responses: TextIO
    messages: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    active: list[tuple[RolloutGroup, dict[str, Any]]] = field(default_factory=list)
    is_ended: bool = False

    def run(self) -> None:
        """Work until stdin ends."""
        threading.Thread(target=self._read_messages, daemon=True).start()
        while not self.is_ended:
            weights = None
            for message in self._iter_new_messages():
                if message["do"] == "load":
                    weights = message
                elif message["do"] == "generate":
                    self.active += [
                        (rollout_group_from_dict(request["group"]), request)
                        for request in message["requests"]
                    ]
                else:
                    self.active.clear()
            if weights is not None:
                self._load(weights)
            if self.active and not self.is_ended:
                self._generate_turn()

    def _read_messages(self) -> None:
        for line in sys.stdin:
            self.messages.put(json.loads(line))
        self.messages.put(None)

    def _iter_new_messages(self) -> Iterator[dict[str, Any]]:
        """Yield what has come, and wait for the first message if there is nothing to do."""
        should_wait = not self.active
        while True:
            try:
                message = self.messages.get(block=should_wait)
            except queue.Empty:
                return
            if message is None:
                self.is_ended = True
                return
            yield message
            should_wait = False

    def _load(self, message: dict[str, Any]) -> None:
        # a version that is gone already has a successor, whose message is on its way
        with suppress(KeyError):
            self.runner.generator.load(
                self.transport.pull(message["key"]), version=message["version"]
            )

    def _generate_turn(self) -> None:
        start, before = time.monotonic(), self._count_tokens()
        for temperature in {request["temperature"] for _, request in self.active}:
            self.runner.generate_turn(
                [group for group, request in self.active if request["temperature"] == temperature],
                temperature=temperature,
            )
        tokens = self._count_tokens() - before
        done = [(group, request) for group, request in self.active if group.is_done]
        self.active = [each for each in self.active if not each[0].is_done]
        message = {
            "groups": [group.to_dict() for group, _ in done],
            "epoch": done[0][1]["epoch"] if done else -1,
            "busy_seconds": time.monotonic() - start,
            "tokens": tokens,
        }
        self.responses.write(json.dumps(message) + "\n")
        self.responses.flush()

    def _count_tokens(self) -> int:
        return sum(
            rollout.num_completion_tokens for group, _ in self.active for rollout in group.rollouts
        )


def open_worker(resolved_path: Path, number: int, responses: TextIO) -> RolloutWorker:
    """Build the generator, environment and rewards of a run in this process."""
    text = resolved_path.read_text(encoding="utf-8")
    recipe = load_resolved_text(text)
    config = recipe.rl
    assert config is not None, "a rule requires it"
    torch.set_num_threads(config.fleet.threads)
    device = select_device(recipe.device)
    set_determinism(recipe)
    tokenizer = build_tokenizer(recipe)
    assert tokenizer is not None, "a rule requires one"
    job = WorkerJob(resolved_path, text, RankInfo())
    resources = build_generator_resources(recipe, config, job, device, None, tokenizer)
    logs = resolved_path.parent / "logs" / f"generator-{number}"
    return RolloutWorker(
        build_rollout_runner(recipe, config, logs, resources, tokenizer, device),
        build_weight_transport(config, resolved_path.parent / WEIGHTS_FOLDER),
        responses,
    )


def serve_rollouts(resolved_path: Path, number: int) -> int:
    """Serve the trainer that started this process. Return the exit code."""
    ignore_run_signals()
    # whatever else is printed goes to the log
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        worker = open_worker(resolved_path, number, responses)
        try:
            worker.run()
        finally:
            worker.runner.close()
    except ProblemsFound as error:
        problem = error.problems[0]
        responses.write(json.dumps({"problem": problem.message, "hint": problem.hint}) + "\n")
        responses.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(serve_rollouts(Path(sys.argv[1]), int(sys.argv[2])))
