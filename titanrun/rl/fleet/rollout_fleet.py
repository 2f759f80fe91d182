"""Fleet of processes that generate groups of conversations, and the router in front of them.

All state changes under one lock, in the threads that read the processes' messages as well as in the
trainer's: a process that becomes free gets its next groups while the trainer trains.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.rl.fleet.config import RouterConfig
from titanrun.rl.fleet.fleet_process import FleetProcess
from titanrun.rl.fleet.fleet_usage import FleetUsage
from titanrun.rl.schedule_record import ScheduleRecorder

log = logging.getLogger(__name__)

FLEET_PATH = ("rl", "fleet", "processes")
# seconds before the first restart of a process, doubled for each further one
FIRST_BACKOFF_SECONDS = 1.0
POLL_SECONDS = 0.5


@dataclass(slots=True)
class RolloutFleet:
    """Groups that wait, run and are done, by number.

    A group waits until a process has room: at most `max_running` conversations run in each, and as
    many wait there, so that it need not wait for the next. Of a process that ends, the groups wait
    again, first of all, and go on after their last turn with the same seeds.

    Args:
        processes: the processes.
        max_running: conversations at once in each.
        timeout_seconds: longest silence of a process with groups.
        router: chooses the process of a group.
        usage: counts for the metrics.
        min_generators: processes that must run for training to go on.
        wait_seconds: longest wait for that many.
        carrier: what runs the processes, closed after them.
        recorder: writes down who generates what. None: nothing is written.
    """

    processes: Sequence[FleetProcess]
    max_running: int
    timeout_seconds: float
    router: RouterConfig = field(default_factory=RouterConfig)
    usage: FleetUsage = field(default_factory=FleetUsage)
    min_generators: int = 1
    wait_seconds: float = 600.0
    carrier: ExitStack = field(default_factory=ExitStack)
    recorder: ScheduleRecorder | None = None
    _waiting: deque[dict[str, Any]] = field(default_factory=deque)
    _done: dict[int, dict[str, Any]] = field(default_factory=dict)
    _weights: dict[str, Any] | None = None
    _epoch: int = 0
    _num_choices: int = 0
    _failure: ProblemsFound | None = None
    _too_few_since: float | None = None
    _is_closed: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def start(self) -> None:
        """Start all processes. They load their first weights when `load` is called."""
        with self._condition:
            for process in self.processes:
                self._start(process)

    def load(self, key: int, *, version: int) -> None:
        """Let every process load published weights before it starts another group."""
        with self._condition:
            self._weights = {"do": "load", "key": key, "version": version}
            for process in self.processes:
                if process.is_alive:
                    process.send(self._weights)

    def submit(self, groups: Sequence[dict[str, Any]], *, temperature: float | None) -> None:
        """Queue groups, given as plain data with their `number`."""
        with self._condition:
            self._waiting.extend(
                {
                    "group": group,
                    "temperature": temperature,
                    "epoch": self._epoch,
                    "is_sticky": self.router.sticky,
                }
                for group in groups
            )
            self._dispatch()

    def wait_for_any(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Wait until one of these groups is done. Return all of them that are, and forget them.

        Raises:
            ProblemsFound: too few processes are left, or one reports a problem.
        """
        with self._condition:
            while self._has_too_few() or not any(number in self._done for number in numbers):
                if self._failure is not None:
                    raise self._failure
                self._condition.wait(POLL_SECONDS)
                self._kill_silent_processes()
                send_heartbeat()
            return [self._done.pop(number) for number in numbers if number in self._done]

    def drop_all(self) -> None:
        """Forget all groups, those under way included."""
        with self._condition:
            self._epoch += 1
            self._waiting.clear()
            self._done.clear()
            for process in self.processes:
                process.running.clear()
                if process.is_alive:
                    process.send({"do": "drop"})

    def collect_usage(self) -> dict[str, float]:
        """Return the metrics since the last call, and start a new interval."""
        with self._condition:
            running = sum(len(process.running) for process in self.processes)
            values = self.usage.collect(len(self.processes))
            admitted = running + len(self._waiting) + len(self._done)
            return values | {
                "rl/queue/admitted": float(admitted),
                "rl/queue/running": float(running),
                "rl/queue/waiting": float(len(self._waiting)),
                "rl/queue/done": float(len(self._done)),
            }

    def close(self) -> None:
        """End all processes."""
        with self._condition:
            self._is_closed = True
        for process in self.processes:
            process.close()
        self.carrier.close()

    def _start(self, process: FleetProcess) -> None:
        process.start(
            lambda start, message: self._handle_message(process, start, message),
            lambda start: self._handle_exit(process, start),
        )
        if self._weights is not None:
            process.send(self._weights)

    def _dispatch(self) -> None:
        """Give waiting groups to processes with room for them, in one message each."""
        chosen: dict[int, list[dict[str, Any]]] = {}
        while self._waiting:
            process = self._choose_process()
            if process is None:
                break
            self._num_choices += 1
            process.last_choice = self._num_choices
            request = self._waiting.popleft()
            if not process.running:
                process.last_message = time.monotonic()
            process.running[request["group"]["number"]] = request
            chosen.setdefault(process.number, []).append(request)
        for process in self.processes:
            if process.number in chosen:
                requests = chosen[process.number]
                self._record("start", process, groups=list_numbers(requests))
                process.send(
                    {"do": "generate", "requests": requests, "max_running": self.max_running}
                )

    def _record(self, event: str, process: FleetProcess, **values: Any) -> None:
        if self.recorder is not None:
            self.recorder.write(event, generator=process.number, **values)

    def _choose_process(self) -> FleetProcess | None:
        free = {
            process.number: count_conversations(process.running.values())
            for process in self.processes
            if process.is_alive
        }
        processes = [
            process
            for process in self.processes
            if process.number in free and free[process.number] < 2 * self.max_running
        ]
        is_loaded = self.router.name == "least_loaded"
        return min(
            processes,
            key=lambda each: (free[each.number] if is_loaded else 0, each.last_choice),
            default=None,
        )

    def _handle_message(self, process: FleetProcess, start: int, message: dict[str, Any]) -> None:
        with self._condition:
            process.last_message = time.monotonic()
            if "connected" in message:
                # one that takes its time to start: only now messages reach it
                process.admit()
                if self._weights is not None:
                    process.send(self._weights)
                self._dispatch()
                self._condition.notify_all()
                return
            if "problem" in message:
                self._failure = problem_error(
                    "data",
                    f"{process.title}: {message['problem']}",
                    path=FLEET_PATH,
                    hint=message.get("hint") or f"see its log file {process.log_file}",
                )
            self.usage.record_turn(process.number, message)
            if message.get("epoch") == self._epoch:
                for batch in message.get("generated", ()):
                    self._record("generate", process, **batch)
                self._take_groups(process, message["groups"])
            self._dispatch()
            self._condition.notify_all()

    def _take_groups(self, process: FleetProcess, groups: Sequence[dict[str, Any]]) -> None:
        """Take the groups of a process after a turn. Those that go on may change the process."""
        unfinished = []
        for group in groups:
            request = process.running.pop(group["number"], None)
            if request is None:
                continue
            if not is_ongoing(group):
                self._done[group["number"]] = group
                continue
            request = {**request, "group": group}
            if self.router.sticky:
                process.running[group["number"]] = request
            else:
                unfinished.append(request)
        self._waiting.extendleft(reversed(unfinished))

    def _handle_exit(self, process: FleetProcess, start: int) -> None:
        with self._condition:
            if self._is_closed or start != process.num_starts:
                return
            lost = list(process.running.values())
            process.running.clear()
            self._waiting.extendleft(reversed(lost))
            self._record("lost", process, groups=list_numbers(lost))
            self.usage.num_lost += len(lost)
            log.warning(
                "%s ended with %d groups under way, %d restarts left, last line of %s: %s",
                process.title,
                len(lost),
                process.starts_left,
                process.log_file,
                process.read_last_stderr_line(),
            )
            if process.starts_left:
                backoff = FIRST_BACKOFF_SECONDS * 2 ** (process.num_starts - 1)
                timer = threading.Timer(backoff, self._restart, args=(process,))
                timer.daemon = True
                timer.start()
            else:
                count = len(self.processes)
                left = sum(each.may_return for each in self.processes)
                if left < self.min_generators:
                    who = f"{count - left} of {count}" if left else "all"
                    self._fail(f"{who} generators ended too often", process)
            self._dispatch()
            self._condition.notify_all()

    def _fail(self, message: str, process: FleetProcess) -> None:
        """End the run with a message and the last words of a process."""
        words = process.read_last_stderr_line()
        self._failure = problem_error(
            "data",
            f"{message}, the last words of {process.title}: {words}",
            path=FLEET_PATH,
            hint=f"see its log file {process.log_file}",
        )

    def _has_too_few(self) -> bool:
        """Return whether fewer processes run than must. After a while, that ends the run."""
        ended = [process for process in self.processes if not process.is_alive]
        running = len(self.processes) - len(ended)
        if running >= self.min_generators:
            self._too_few_since = None
            return False
        now = time.monotonic()
        self._too_few_since = self._too_few_since or now
        if now - self._too_few_since > self.wait_seconds and self._failure is None:
            message = f"fewer than {self.min_generators} generators ran for {self.wait_seconds:g} s"
            self._fail(message, ended[-1])
        return True

    def _restart(self, process: FleetProcess) -> None:
        with self._condition:
            if not self._is_closed:
                self.usage.num_restarts += 1
                self._start(process)
                self._dispatch()

    def _kill_silent_processes(self) -> None:
        now = time.monotonic()
        for process in self.processes:
            is_silent = now - process.last_message > self.timeout_seconds
            if process.is_alive and process.running and is_silent:
                log.warning("%s is silent for %g seconds", process.title, self.timeout_seconds)
                process.last_message = now
                process.kill()


def count_conversations(requests: Iterable[dict[str, Any]]) -> int:
    """Return the number of conversations in the groups of these requests."""
    return sum(len(request["group"]["rollouts"]) for request in requests)


def list_numbers(requests: Iterable[dict[str, Any]]) -> list[int]:
    """Return the numbers of the groups of these requests."""
    return [request["group"]["number"] for request in requests]


def is_ongoing(group: dict[str, Any]) -> bool:
    """Return whether a group has conversations that go on."""
    return any(rollout["status"] == "ongoing" for rollout in group["rollouts"])
