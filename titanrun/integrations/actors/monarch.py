"""Actors of Monarch, PyTorch's actor system."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from titanrun.config.problems import problem_error
from titanrun.integrations.actors.endpoint_host import EndpointHost, RankPlace
from titanrun.integrations.actors.endpoints import ActorBlueprint

try:
    from monarch.actor import Actor, concurrent_endpoint, current_rank, this_host
except ImportError as error:
    raise problem_error(
        "usage", "Monarch is not installed", hint='pip install "titanrun[monarch]"'
    ) from error

# Monarch's axis of the processes of a host; accelerators or not
AXIS = "gpus"


def spawn(factory: Callable[..., Any], *args: Any, ranks: int = 1, **kwargs: Any) -> "MonarchActor":
    """Start an actor in processes of this host, and wait until it is built.

    Args:
        factory: as that of `titanrun.integrations.actors.local.spawn`.
        args: positional arguments of the factory.
        ranks: number of processes. They are the ranks of a process group.
        kwargs: keyword arguments of the factory.
    """
    blueprint = ActorBlueprint(factory, args, kwargs)
    processes = this_host().spawn_procs(per_host={AXIS: ranks})
    mesh = processes.spawn(blueprint.title, build_actor_class(blueprint))
    actor = MonarchActor(mesh, processes)
    with ExitStack() as undo:
        undo.callback(actor.shutdown)
        port = mesh.slice(**{AXIS: 0}).open_rendezvous.call_one().get() if ranks > 1 else 0
        mesh.start.call(blueprint, ranks, port).get()
        undo.pop_all()
    return actor


class MonarchActor:
    """Actor mesh: each endpoint is an attribute, as in Monarch, and so is all else of the mesh.

    Use it in a `with` block, or call `shutdown`.

    Args:
        mesh: Monarch's ActorMesh.
        processes: its processes.
    """

    def __init__(self, mesh: Any, processes: Any) -> None:
        self.mesh, self.processes = mesh, processes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["mesh"], name)

    def shutdown(self) -> None:
        """End the processes. Further calls have no effect."""
        processes, self.processes = self.processes, None
        if processes is not None:
            processes.stop().get()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()


def build_actor_class(blueprint: ActorBlueprint) -> type:
    """Build the class of a Monarch actor with the endpoints of a blueprint."""
    methods = {name: concurrent_endpoint(build_method(name)) for name in blueprint.endpoints}
    return type(f"{blueprint.title}Actor", (HostActor,), methods)


def build_method(name: str) -> Callable[..., Any]:
    """Build the method of an endpoint. Its call waits in the host's order, not in Monarch's."""

    async def call(self: "HostActor", *args: Any, **kwargs: Any) -> Any:
        return await asyncio.wrap_future(self.host.submit(name, lambda: (args, kwargs)))

    call.__name__ = name
    return call


class HostActor(Actor):  # type: ignore[misc]
    """Monarch actor around one rank."""

    def __init__(self) -> None:
        self.host = EndpointHost()

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def open_rendezvous(self) -> int:
        """Listen for the other ranks and return the port."""
        return self.host.open_rendezvous()

    @concurrent_endpoint  # type: ignore[untyped-decorator]
    async def start(self, blueprint: ActorBlueprint, ranks: int, port: int) -> None:
        """Build the object of this rank."""
        rank = int(current_rank().rank)
        place = RankPlace(rank, ranks, local_rank=rank, port=port)
        await asyncio.wrap_future(self.host.start(lambda: (place, blueprint)))
