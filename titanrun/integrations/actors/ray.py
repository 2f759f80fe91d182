"""Actors of Ray, on this machine or on a cluster."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.integrations.actors.actor_calls import ActorGroup, EndpointHandle
from titanrun.integrations.actors.endpoint_host import EndpointHost, RankPlace
from titanrun.integrations.actors.endpoints import ActorBlueprint

try:
    import ray
except ImportError as error:
    raise problem_error(
        "usage", "Ray is not installed", hint='pip install "titanrun[ray]"'
    ) from error


def spawn(
    factory: Callable[..., Any],
    *args: Any,
    ranks: int = 1,
    actor_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> "RayActor":
    """Start an actor on the cluster that `ray.init` joined, and wait until it is built.

    Args:
        factory: as that of `titanrun.integrations.actors.local.spawn`.
        args: positional arguments of the factory.
        ranks: number of Ray actors. They are the ranks of a process group.
        actor_options: Ray's options of each, such as `{"num_gpus": 1}`.
        kwargs: keyword arguments of the factory.
    """
    return RayActor(ActorBlueprint(factory, args, kwargs), ranks, actor_options or {})


class RayActor(ActorGroup):
    """Ranks of an actor, each an actor of Ray. Endpoints have Ray's `remote` too.

    Use it in a `with` block, or call `shutdown`.
    """

    def __init__(
        self, blueprint: ActorBlueprint, ranks: int, actor_options: Mapping[str, Any]
    ) -> None:
        super().__init__(blueprint.title, blueprint.endpoints, ranks)
        self.endpoints = {name: RayEndpointHandle(self, name) for name in self.endpoints}
        remote = ray.remote(RayRank).options(**actor_options)
        self._actors = [remote.remote() for _ in range(ranks)]
        with ExitStack() as undo:
            undo.callback(self.shutdown)
            self._start(blueprint)
            undo.pop_all()

    def _start(self, blueprint: ActorBlueprint) -> None:
        host, port = "127.0.0.1", 0
        if self.ranks > 1:
            host, port = ray.get(self._actors[0].open_rendezvous.remote())
        places = [RankPlace(rank, self.ranks, host=host, port=port) for rank in range(self.ranks)]
        started = [
            actor.start.remote(place, blueprint)
            for actor, place in zip(self._actors, places, strict=True)
        ]
        ray.get(started)

    def submit(
        self, rank: int, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        """Start a call on one rank."""
        future: Future[Any] = self.submit_remote(rank, endpoint, args, kwargs).future()
        return future

    def submit_remote(
        self, rank: int, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Start a call on one rank and return Ray's reference to its result."""
        return self._actors[rank].run.remote(endpoint, args, kwargs)

    def shutdown(self) -> None:
        """End the processes of all ranks. Further calls have no effect."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


@dataclass(frozen=True, slots=True)
class RayEndpointHandle(EndpointHandle):
    """Endpoint of an actor, which is called as Ray's methods are, too."""

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Run the endpoint on all ranks. Return Ray's reference, of several ranks a list."""
        assert isinstance(self.group, RayActor)
        found = [
            self.group.submit_remote(rank, self.name, args, kwargs)
            for rank in range(self.group.ranks)
        ]
        return found[0] if len(found) == 1 else found


class RayRank:
    """Ray actor around one rank."""

    def __init__(self) -> None:
        self.host = EndpointHost()

    async def open_rendezvous(self) -> tuple[str, int]:
        """Listen for the other ranks and return the address."""
        host = ray.util.get_node_ip_address()
        # the first rank reaches itself by another address than the others
        return host, self.host.open_rendezvous("0.0.0.0")

    async def start(self, place: RankPlace, blueprint: ActorBlueprint) -> None:
        """Build the object of this rank."""
        await asyncio.wrap_future(self.host.start(lambda: (place, blueprint)))

    async def run(self, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an endpoint in the host's order."""
        return await asyncio.wrap_future(self.host.submit(endpoint, lambda: (args, kwargs)))
