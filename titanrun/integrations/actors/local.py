"""Actors in child processes of this one."""

import atexit
import logging
import multiprocessing
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Lock, Thread
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.integrations.actors.actor_calls import ActorGroup
from titanrun.integrations.actors.endpoint_host import RankPlace
from titanrun.integrations.actors.endpoints import ActorBlueprint
from titanrun.integrations.actors.local_rank import (
    PICKLE_ERRORS,
    RENDEZVOUS,
    START,
    UNPICKLE_ERRORS,
    run_local_rank,
)

log = logging.getLogger(__name__)
# how long a process may take to end after its connection was closed
EXIT_SECONDS = 5.0


class ActorDied(RuntimeError):  # noqa: N818 - reads as what happened, as in other actor systems
    """The process of an actor ended while it was needed."""


def spawn(factory: Callable[..., Any], *args: Any, ranks: int = 1, **kwargs: Any) -> "LocalActor":
    """Start an actor in child processes, and wait until it is built.

    Args:
        factory: TitanTrainer, ReferenceModel, ReplayBuffer, PolicyTrainer, a class that derives
            from one of them, or a function whose annotation names it as its result.
        args: positional arguments of the factory.
        ranks: number of processes. They are the ranks of a process group.
        kwargs: keyword arguments of the factory.

    Raises:
        ProblemsFound: what the factory raises; or an argument cannot be sent to another process.
    """
    return LocalActor(ActorBlueprint(factory, args, kwargs), ranks)


@dataclass(eq=False)
class LocalProcess:
    """Child process of one rank, as its parent sees it."""

    title: str
    rank: int
    _process: SpawnProcess = field(init=False)
    _connection: Connection = field(init=False)
    _waiting: dict[int, Future[Any]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _num_sent: int = 0
    _is_closed: bool = False

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(
            target=run_local_rank,
            args=(remote, self.title, self.rank),
            name=f"{self.title}-{self.rank}",
        )
        self._process.start()
        remote.close()
        Thread(target=self._read_answers, daemon=True).start()

    def send(self, kind: str, content: object = None) -> Future[Any]:
        """Send a request and return the future of its answer.

        Raises:
            ProblemsFound: the content cannot be sent.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        packed = pickle_request(content, self.title)
        with self._lock:
            if self._is_closed:
                future.set_exception(ActorDied(f"{self._name} has ended"))
                return future
            self._num_sent += 1
            self._waiting[self._num_sent] = future
            # the thread that reads notices the end of a process, and says so
            with suppress(OSError):
                self._connection.send_bytes(pickle.dumps((self._num_sent, kind, packed)))
        return future

    def close(self) -> None:
        """End the process. Calls that wait fail."""
        with self._lock:
            self._is_closed = True
            self._connection.close()
        self._process.join(EXIT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def _name(self) -> str:
        return f"rank {self.rank} of {self.title}"

    def _read_answers(self) -> None:
        while True:
            try:
                number, has_failed, content = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError, TypeError):
                # closed here, or there
                break
            future = self._waiting.pop(number)
            try:
                loaded = pickle.loads(content)
            except UNPICKLE_ERRORS as error:
                has_failed, loaded = True, error
            if has_failed:
                future.set_exception(loaded)
            else:
                future.set_result(loaded)
        self._process.join(EXIT_SECONDS)
        code = self._process.exitcode
        with self._lock:
            self._is_closed = True
            lost, self._waiting = list(self._waiting.values()), {}
        for each in lost:
            each.set_exception(ActorDied(f"{self._name} ended with exit code {code}"))


class LocalActor(ActorGroup):
    """Ranks of an actor in child processes, which end with this one.

    Use it in a `with` block, or call `shutdown`.
    """

    def __init__(self, blueprint: ActorBlueprint, ranks: int) -> None:
        super().__init__(blueprint.title, blueprint.endpoints, ranks)
        pickle_request(blueprint, self.title)
        self._processes = [LocalProcess(self.title, rank) for rank in range(ranks)]
        running.add(self)
        with ExitStack() as undo:
            undo.callback(self.shutdown)
            self._start(blueprint)
            undo.pop_all()

    def _start(self, blueprint: ActorBlueprint) -> None:
        port = self._processes[0].send(RENDEZVOUS).result() if self.ranks > 1 else 0
        started = [
            process.send(
                START, (RankPlace(rank, self.ranks, local_rank=rank, port=port), blueprint)
            )
            for rank, process in enumerate(self._processes)
        ]
        for each in started:
            each.result()

    def submit(
        self, rank: int, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        """Start a call on one rank."""
        return self._processes[rank].send(endpoint, (args, kwargs))

    def shutdown(self) -> None:
        """End the processes. Calls that have not finished fail."""
        running.discard(self)
        for process in self._processes:
            process.close()


# a process whose parent ends ends too, but multiprocessing waits for it before that
running: "weakref.WeakSet[LocalActor]" = weakref.WeakSet()


@atexit.register
def shutdown_all() -> None:
    """End the actors that nobody ended."""
    for actor in list(running):
        actor.shutdown()


def pickle_request(content: object, title: str) -> bytes:
    """Pickle what is sent to an actor.

    Raises:
        ProblemsFound: it cannot be pickled, such as a function within another.
    """
    try:
        return pickle.dumps(content)
    except PICKLE_ERRORS as error:
        raise problem_error(
            "wrong-type",
            f"an argument of {title} cannot be sent to another process: {error}",
            hint="define functions and classes at the top level of a module",
        ) from error
