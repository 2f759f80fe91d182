"""One process of an RL run's fleet: `python -m titanrun.worker.rollout_worker RESOLVED NUMBER`.

It reads messages as lines of JSON on stdin: weights to load, groups to generate, `drop`, `stop`, or
the `hello` of a restarted trainer. After each turn it writes its groups on stdout, with the tokens
of the turn.

With two further arguments, a descriptor and a file, it outlives its trainer, until the other end of
the descriptor is closed and nobody locks the file.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.device import select_device
from titanrun.distributed.rank_env import RankInfo
from titanrun.distributed.spec.run_signals import ignore_run_signals
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.named_pipes import wait_for_end
from titanrun.rl.fleet.rollout_messages import RolloutMessages, respond_problem, write_message
from titanrun.rl.generators.generator_protocol import GenerationLog, WeightUpdate, WeightUpdates
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_types import RolloutGroup, rollout_group_from_dict
from titanrun.rl.weight_sync.shared_memory_blocks import sweep_abandoned_blocks
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

# seconds that the turn under way gets after the trainer has ended
END_SECONDS = 1.0
# of a trainer that was killed, the pipe may close before its locks are free
SWEEP_SECONDS = 1.0
POLL_SECONDS = 0.1


@dataclass(slots=True)
class ActiveGroup:
    """Group that this process works on, and the request for it."""

    group: RolloutGroup
    request: dict[str, Any]


@dataclass(slots=True)
class WorkerWeights:
    """Weights that the trainer has published, as its messages name them.

    The trainer is told when they are being loaded, and when they are.

    Args:
        messages: messages of the trainer.
        transport: reader of the weights.
        responses: file of the messages to the trainer.

    Attributes:
        load_seconds: time to read weights and to copy them into the generator.
        is_behind: whether the last ones were gone, and their successor has not come yet.
    """

    messages: RolloutMessages
    transport: WeightTransport
    responses: TextIO
    load_seconds: float = 0.0
    is_behind: bool = False

    def take(self) -> WeightUpdate | None:
        """Return the newest weights, or None if there are no others."""
        message = self.messages.take_weights()
        return None if message is None else self.pull(message)

    def pull(self, message: dict[str, Any]) -> WeightUpdate | None:
        """Return the weights that a message names.

        None: they are gone. They have a successor, whose message is on its way.
        """
        start = time.monotonic()
        write_message({"loading": True}, self.responses)
        try:
            weights = list(self.transport.pull(message["key"]))
        except KeyError:
            self.is_behind = True
            self._end_load(start)
            return None
        self.is_behind = False
        return WeightUpdate(self._iter_loaded(weights, start), message["version"])

    def _iter_loaded(
        self, weights: Iterable[tuple[str, Tensor]], start: float
    ) -> Iterator[tuple[str, Tensor]]:
        yield from weights
        self._end_load(start)

    def _end_load(self, start: float) -> None:
        self.load_seconds += time.monotonic() - start
        write_message({"loading": False}, self.responses)


@dataclass(slots=True)
class RolloutWorker:
    """Conversations of this process: those under way, and those that wait for them.

    Weights are loaded between two turns, or between two bursts of tokens, always before groups that
    came after them.

    Args:
        runner: generates and scores.
        weights: weights of the trainer.
        responses: file of the messages to it.
        log: what the generator did, which the trainer records. None: it does not.

    Attributes:
        num_orphaned: groups of earlier trainers that were dropped since the last one came.
    """

    runner: RolloutRunner
    weights: WorkerWeights
    responses: TextIO
    log: GenerationLog | None = None
    max_running: int = 0
    num_orphaned: int = 0
    active: list[ActiveGroup] = field(default_factory=list)
    waiting: deque[ActiveGroup] = field(default_factory=deque)

    def run(self) -> None:
        """Work until the messages end."""
        messages = self.weights.messages
        while True:
            weights = None
            can_start = bool(self.waiting) and not self.weights.is_behind
            for message in messages.iter_new(should_wait=not self.active and not can_start):
                if message is None:
                    return
                if message["do"] == "load":
                    weights = message
                elif message["do"] == "generate":
                    self._receive(message)
                else:
                    self._forget(message)
            if weights is not None:
                self._load(weights)
            self._start_waiting()
            if self.active:
                self._generate_turn()

    def _forget(self, message: dict[str, Any]) -> None:
        """Drop all groups. A trainer that says `hello` is told how many an earlier one had here.

        That is one of the same run.
        """
        count = len(self.active) + len(self.waiting)
        self.active.clear()
        self.waiting.clear()
        # a rollback's trainer has counted them itself
        if message["do"] == "hello" or message.get("is_orphaned"):
            self.num_orphaned += count
        if message["do"] == "hello":
            write_message({"hello": message["token"]}, self.responses)
            count = self.num_orphaned if message.get("is_of_last_run", True) else 0
            write_message({"discarded": count}, self.responses)
            self.num_orphaned = 0

    def _receive(self, message: dict[str, Any]) -> None:
        self.max_running = message["max_running"]
        self.waiting += [
            ActiveGroup(rollout_group_from_dict(request["group"]), request)
            for request in message["requests"]
        ]

    def _load(self, message: dict[str, Any]) -> None:
        update = self.weights.pull(message)
        if update is not None:
            self.runner.generator.load(update.weights, version=update.version)

    def _start_waiting(self) -> None:
        """Start groups while there is room, at least one.

        None may start with older weights than those that the trainer sent before it.
        """
        if self.weights.is_behind:
            return
        running = sum(len(each.group.rollouts) for each in self.active)
        while self.waiting:
            running += len(self.waiting[0].group.rollouts)
            if self.active and running > self.max_running:
                return
            self.active.append(self.waiting.popleft())

    def _generate_turn(self) -> None:
        """Generate a turn of all conversations and send their groups to the trainer."""
        tokens = 0
        for temperature in {each.request["temperature"] for each in self.active}:
            groups = [
                each.group for each in self.active if each.request["temperature"] == temperature
            ]
            before = count_tokens(groups)
            self.runner.generate_turn(groups, temperature=temperature)
            # the trainer's metrics are about training only
            if temperature is None:
                tokens += count_tokens(groups) - before
        message = {
            "groups": [each.group.to_dict() for each in self.active],
            "epoch": self.active[0].request["epoch"],
            "load_seconds": self.weights.load_seconds,
            "tokens": tokens,
            "generated": [] if self.log is None else self.log.pop(),
        }
        self.weights.load_seconds = 0.0
        self.active = [
            each for each in self.active if each.request["is_sticky"] and not each.group.is_done
        ]
        write_message(message, self.responses)

    def close(self) -> None:
        """Release all resources, and the memory of a trainer that was killed."""
        self.runner.close()
        deadline = time.monotonic() + SWEEP_SECONDS
        # a trainer that ended by itself has removed them
        while self.weights.transport.list_versions() and time.monotonic() < deadline:
            sweep_abandoned_blocks()
            time.sleep(POLL_SECONDS)

    def end_with_launcher(self, lifeline: int, lock_file: Path) -> None:
        """End the process when the launcher and its last trainer have ended."""
        wait_for_end(lifeline, lock_file)
        self.end_soon()

    def end_soon(self) -> None:
        """End the process, even in the middle of a turn."""
        time.sleep(END_SECONDS)
        self.close()
        os._exit(0)


def count_tokens(groups: list[RolloutGroup]) -> int:
    """Return the number of tokens in all completions."""
    return sum(rollout.num_completion_tokens for group in groups for rollout in group.rollouts)


def open_worker(
    job: WorkerJob,
    number: int,
    messages: RolloutMessages,
    responses: TextIO,
    transport: WeightTransport | None = None,
) -> RolloutWorker:
    """Build the generator, environment and rewards of a run in this process.

    Args:
        job: the run. Its folder may be absent on this machine.
        number: number of this process in the fleet.
        messages: messages of the trainer.
        responses: file of the messages to it.
        transport: reader of the weights. None: what the recipe names.
    """
    recipe = load_resolved_text(job.resolved_text)
    config = recipe.rl
    assert config is not None, "a rule requires it"
    torch.set_num_threads(config.fleet.threads)
    device = select_device(recipe.device)
    set_determinism(recipe)
    tokenizer = build_tokenizer(recipe)
    assert tokenizer is not None, "a rule requires one"
    folder = job.resolved_path.parent
    weights = WorkerWeights(
        messages, transport or build_weight_transport(config, folder / WEIGHTS_FOLDER), responses
    )
    log = GenerationLog() if config.schedule.record else None
    resources = build_generator_resources(
        recipe, config, job, device, None, tokenizer, build_updates(config, weights), log
    )
    logs = folder / "logs" / f"generator-{number}"
    runner = build_rollout_runner(recipe, config, logs, resources, tokenizer, device)
    return RolloutWorker(runner, weights, responses, log)


def build_updates(config: RlConfig, weights: WorkerWeights) -> WeightUpdates | None:
    """Build the access to new weights within a completion, or return None without one."""
    if not config.schedule.update_in_flight:
        return None
    return WeightUpdates(weights.take, resets_cache=config.sync.kv_on_update == "reset")


def serve_rollouts(
    resolved_path: Path, number: int, lifeline: tuple[int, Path] | None = None
) -> int:
    """Serve the trainer that started this process, and with a lifeline those after it.

    Return the exit code.
    """
    ignore_run_signals()
    # whatever else is printed goes to the log
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    messages = RolloutMessages(sys.stdin)
    try:
        job = WorkerJob(resolved_path, resolved_path.read_text(encoding="utf-8"), RankInfo())
        worker = open_worker(job, number, messages, responses)
        messages.start(worker.end_soon)
        if lifeline is not None:
            threading.Thread(target=worker.end_with_launcher, args=lifeline, daemon=True).start()
        try:
            worker.run()
        finally:
            worker.close()
    except ProblemsFound as error:
        respond_problem(error, responses)
        return 1
    return 0


if __name__ == "__main__":
    exit_code = serve_rollouts(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        (int(sys.argv[3]), Path(sys.argv[4])) if len(sys.argv) > 3 else None,
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # the end of an interpreter with torch takes seconds on a busy machine
    os._exit(exit_code)
