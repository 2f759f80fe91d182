"""One rank of an actor in its own process: the object, and the threads that run its endpoints."""

import os
import socket
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from titanrun.distributed.rank_env import set_rank_variables
from titanrun.integrations.actors.endpoints import CONCURRENT_ENDPOINTS, HEALTH, ActorBlueprint

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank of an actor, and the address at which its ranks find each other.

    Args:
        rank: the rank.
        ranks: their number.
        local_rank: index of the rank's accelerator among those that its process sees.
        host: host of the first rank.
        port: port that the first rank opened.
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(slots=True)
class EndpointHost:
    """Object of one rank. Its endpoints run one at a time, in the order in which they are called.

    Those of CONCURRENT_ENDPOINTS run beside them, in a thread of their own.
    """

    _rendezvous: socket.socket | None = None
    _place: RankPlace = field(default_factory=RankPlace)
    _target: Any = None
    _running: str | None = None
    _ordered: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "titanrun-endpoints")
    )
    _concurrent: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "titanrun-concurrent")
    )

    def open_rendezvous(self, host: str = "127.0.0.1") -> int:
        """Listen for the other ranks and return the port. Only the first rank does."""
        self._rendezvous = socket.create_server((host, 0))
        return int(self._rendezvous.getsockname()[1])

    def start(self, read: Callable[[], tuple[RankPlace, ActorBlueprint]]) -> Future[None]:
        """Build the object, with the variables that torchrun would set.

        Args:
            read: returns the rank and what it builds.
        """
        return self._ordered.submit(self._build, read)

    def _build(self, read: Callable[[], tuple[RankPlace, ActorBlueprint]]) -> None:
        self._place, blueprint = read()
        set_rank_variables(
            rank=self._place.rank,
            local_rank=self._place.local_rank,
            world_size=self._place.ranks,
            store_host=self._place.host,
            store_port=self._place.port,
            store_socket=None if self._rendezvous is None else self._rendezvous.fileno(),
        )
        self._target = blueprint.build()

    def submit(self, endpoint: str, read: Callable[[], Arguments]) -> Future[Any]:
        """Run an endpoint and return the future of its result.

        Args:
            endpoint: its name.
            read: returns its positional and its keyword arguments.
        """
        if endpoint == HEALTH:
            return self._concurrent.submit(self.get_health)
        if endpoint in CONCURRENT_ENDPOINTS:
            return self._concurrent.submit(self._call, endpoint, read)
        return self._ordered.submit(self._call_in_order, endpoint, read)

    def get_health(self) -> dict[str, Any]:
        """Return the process, and the endpoint that runs, None if none does."""
        return {"rank": self._place.rank, "pid": os.getpid(), "running": self._running}

    def _call_in_order(self, endpoint: str, read: Callable[[], Arguments]) -> Any:
        self._running = endpoint
        try:
            return self._call(endpoint, read)
        finally:
            self._running = None

    def _call(self, endpoint: str, read: Callable[[], Arguments]) -> Any:
        args, kwargs = read()
        return getattr(self._target, endpoint)(*args, **kwargs)


def add_remote_traceback(error: BaseException, title: str, rank: int) -> None:
    """Note on an exception where it was raised, for the process that receives it."""
    lines = traceback.format_exception(error)
    error.add_note(f"raised in rank {rank} of {title}:\n{''.join(lines).rstrip()}")
