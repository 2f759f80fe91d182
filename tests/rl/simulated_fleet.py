"""Processes of a fleet on a simulated clock. Their loop is the real one."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.rl.simulated_clock import Action, SimulatedClock, SimulationEnd
from titanrun.rl.fleet.fleet_process import FleetProcess, OnExit, OnMessage
from titanrun.rl.fleet.rollout_messages import RolloutMessages
from titanrun.rl.rollout_types import Completion, RolloutGroup, Turn
from titanrun.rl.weight_sync.transport import Weights, drop_old_versions
from titanrun.worker.rollout_worker import RolloutWorker, WorkerWeights

TOKENS = 3


@dataclass
class SimulatedShelf:
    """Weights that take time to be written and read. Their only tensor is their key."""

    clock: SimulatedClock
    draws: Random
    keep: int
    seconds: float
    keys: list[int] = field(default_factory=list)

    def publish(self, key: int, weights: Weights) -> None:
        list(weights)
        self._take_time(1.0)
        self.keys = sorted({*self.keys, key})
        drop_old_versions(self, self.keep)  # type: ignore[arg-type]
        self._take_time(0.1)

    def list_versions(self) -> list[int]:
        return self.keys

    def drop(self, key: int) -> None:
        self.keys.remove(key)

    def pull(self, key: int) -> Iterator[tuple[str, Tensor]]:
        self._take_time(0.1)
        if key not in self.keys:
            raise KeyError(key)
        yield "key", torch.tensor(key)
        self._take_time(1.0)

    def _take_time(self, share: float) -> None:
        self.clock.sleep(share * self.seconds * self.draws.random())


@dataclass
class Channel:
    """Messages that arrive later, in the order in which they were sent."""

    clock: SimulatedClock
    draws: Random
    _last: float = 0.0

    def send(self, deliver: Action) -> None:
        delay = self.draws.choice([0.0, 0.01, 0.01, 2.0]) * self.draws.random()
        self._last = max(self._last, self.clock.now + delay)
        self.clock.after(self._last - self.clock.now, deliver)


@dataclass(frozen=True)
class Start:
    """A turn of a group that began with these weights."""

    group: RolloutGroup
    process: int
    key: int
    version: int


@dataclass
class Scene:
    """What all processes share.

    Args:
        num_turns: turns of each conversation of a group, by its number.
        count_seconds: longest time of a turn of so many groups.
        starts: all turns that were begun, for the test.
    """

    clock: SimulatedClock
    draws: Random
    shelf: SimulatedShelf
    num_turns: Callable[[int], int]
    count_seconds: Callable[[int], float]
    updates_in_flight: bool
    hang_share: float
    starts: list[Start] = field(default_factory=list)


@dataclass
class SimulatedProgram:
    """One start of a process: its stdin and stdout, and what generates.

    Args:
        number: that of its process.
        say: takes the messages of its stdout.
    """

    scene: Scene
    number: int
    say: Callable[[dict[str, Any]], None]
    is_killed: bool = False
    key: int = -1
    version: int = -1
    lines: deque[dict[str, Any]] = field(default_factory=deque)
    _wake: Action = lambda: None
    _is_reading: bool = False

    def run(self) -> None:
        self._sleep(2.0)
        own: Any = self
        messages = RolloutMessages(own, _queue=own)
        self.weights = WorkerWeights(messages, self.scene.shelf, own)  # type: ignore[arg-type]
        RolloutWorker(own, self.weights, own).run()

    def kill(self) -> None:
        self.is_killed = True
        self._wake()

    # stdin

    def put(self, message: dict[str, Any]) -> None:
        self.lines.append(message)
        if self._is_reading:
            self._wake()

    def get(self) -> dict[str, Any]:
        self._is_reading = True
        while not self.lines:
            self._wait(lambda wake: None)
        self._is_reading = False
        return self.lines.popleft()

    def empty(self) -> bool:
        return not self.lines

    # stdout

    def write(self, line: str) -> None:
        if self.is_killed:
            raise SimulationEnd
        self.say(json.loads(line))

    def flush(self) -> None:
        """Nothing is kept back."""

    # the runner and its generator

    @property
    def generator(self) -> "SimulatedProgram":
        return self

    def load(self, weights: Weights, *, version: int) -> None:
        ((_, key),) = weights
        self.key, self.version = int(key), version

    def generate_turn(self, groups: Sequence[RolloutGroup], *, temperature: float | None) -> None:
        self.scene.starts += [Start(group, self.number, self.key, self.version) for group in groups]
        versions, keys = [], []
        for _ in range(TOKENS):
            is_hanging = self.scene.draws.random() < self.scene.hang_share
            self._sleep(1e4 if is_hanging else self.scene.count_seconds(len(groups)) / TOKENS)
            update = self.weights.take() if self.scene.updates_in_flight else None
            if update is not None:
                self.load(update.weights, version=update.version)
            versions.append(self.version)
            keys.append(self.key)
        runs = tuple(enumerate(versions)) if len(set(versions)) > 1 else ()
        said = Completion(keys, [-1.0] * TOKENS, "stop", min(versions), runs)
        for group in groups:
            for rollout in group.rollouts:
                rollout.turns.append(Turn([], said, ""))
                if len(rollout.turns) == self.scene.num_turns(group.number):
                    rollout.status = "completed"

    def _sleep(self, seconds: float) -> None:
        self._wait(lambda wake: self.scene.clock.after(seconds * self.scene.draws.random(), wake))

    def _wait(self, register: Callable[[Action], object]) -> None:
        def note(wake: Action) -> None:
            self._wake = wake
            register(wake)

        if not self.is_killed:
            self.scene.clock.wait(note)
        if self.is_killed:
            raise SimulationEnd


@dataclass(slots=True, kw_only=True)
class SimulatedProcess(FleetProcess):
    """Process whose messages take random times.

    Args:
        connects: whether it says itself when it can be reached, as those of Ray do.
    """

    scene: Scene
    connects: bool
    _program: SimulatedProgram | None = None
    _requests: Channel | None = None
    _is_admitted: bool = False
    _end: Action = lambda: None

    @property
    def is_alive(self) -> bool:
        return self._program is not None and not self._program.is_killed and self._is_admitted

    def admit(self) -> None:
        self._is_admitted = True

    def start(self, on_message: OnMessage, on_exit: OnExit) -> None:
        self.starts_left -= 1
        self.num_starts += 1
        self.is_loading = self.has_loaded = False
        clock, number = self.scene.clock, self.num_starts
        responses, self._requests = (Channel(clock, self.scene.draws) for _ in range(2))

        def say(message: dict[str, Any]) -> None:
            responses.send(lambda: on_message(number, message))

        self._program = SimulatedProgram(self.scene, self.number, say)
        self._is_admitted = not self.connects
        self._end = lambda: responses.send(lambda: on_exit(number))
        clock.start_thread(self._program.run)
        self.last_message = clock.now
        if self.connects:
            say({"connected": True})

    def send(self, message: Mapping[str, Any]) -> None:
        program, copy = self._program, json.loads(json.dumps(message))
        if self.is_alive:
            assert program is not None and self._requests is not None
            self._requests.send(lambda: program.put(copy))

    def kill(self) -> None:
        if self._program is not None and not self._program.is_killed:
            self._program.kill()
            self._end()

    def close(self) -> None:
        self.kill()

    def read_last_stderr_line(self) -> str:
        return ""

    def _open(self) -> Any:
        raise AssertionError("start does it")
