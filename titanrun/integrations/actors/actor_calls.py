"""Calls of an actor's endpoints: their handles, futures, and results of all ranks."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RankResults(Sequence[Any]):
    """Results of a call, in the order of the ranks."""

    results: tuple[Any, ...]

    def get(self, rank: int) -> Any:
        """Return the result of a rank."""
        return self.results[rank]

    def items(self) -> Iterator[tuple[int, Any]]:
        """Iterate over ranks and their results."""
        return iter(enumerate(self.results))

    def values(self) -> Iterator[Any]:
        """Iterate over the results."""
        return iter(self.results)

    def item(self, rank: int | None = None, **axis: int) -> Any:
        """Return the result of a rank, which may be named by any axis. None: of the only rank.

        Raises:
            ValueError: no rank is given, but there are several; or two are given.
        """
        given = [each for each in (rank, *axis.values()) if each is not None]
        if len(given) > 1 or (not given and len(self.results) != 1):
            raise ValueError(f"name one of {len(self.results)} ranks")
        return self.results[given[0] if given else 0]

    def __getitem__(self, rank: Any) -> Any:
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)


class ActorFuture(Generic[Result]):
    """Result of a call on all ranks. Fails as soon as one rank does.

    `await` it, or use `get`.

    Args:
        ranks: future of each rank.
        combine: makes the result of those of the ranks.
    """

    def __init__(
        self, ranks: Sequence[Future[Any]], combine: Callable[[tuple[Any, ...]], Result]
    ) -> None:
        self._ranks, self._combine = tuple(ranks), combine
        self._whole: Future[Result] = Future()
        self._lock, self._num_missing = Lock(), len(self._ranks)
        for each in self._ranks:
            each.add_done_callback(self._count)

    def _count(self, rank: Future[Any]) -> None:
        with self._lock:
            self._num_missing -= 1
            if self._whole.done():
                return
            error = rank.exception()
            if error is not None:
                self._whole.set_exception(error)
            elif self._num_missing == 0:
                self._whole.set_result(self._combine(tuple(each.result() for each in self._ranks)))

    def get(self, timeout: float | None = None) -> Result:
        """Wait for the result.

        Args:
            timeout: seconds. None: no limit.

        Raises:
            TimeoutError: there is no result yet. The call goes on.
        """
        return self._whole.result(timeout)

    def is_done(self) -> bool:
        """Return whether there is a result, or an error."""
        return self._whole.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call, and return its error, None if it succeeded."""
        return self._whole.exception(timeout)

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.wrap_future(self._whole).__await__()


class ActorGroup:
    """Ranks of an actor. Each endpoint is an attribute of its name, an EndpointHandle.

    A call of an endpoint runs on all ranks, as collectives require.

    Args:
        title: name of the class in messages.
        endpoints: names of the endpoints.
        ranks: number of ranks.
    """

    def __init__(self, title: str, endpoints: Sequence[str], ranks: int) -> None:
        self.title, self.ranks = title, ranks
        self.endpoints = {name: EndpointHandle(self, name) for name in endpoints}

    def submit(
        self, rank: int, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        """Start a call on one rank."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """End the processes of all ranks. Further calls have no effect."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> "EndpointHandle":
        if name in self.__dict__.get("endpoints", {}):
            return self.endpoints[name]
        known = ", ".join(self.__dict__.get("endpoints", ()))
        raise AttributeError(f"the actor has no endpoint {name}, only {known}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()


@dataclass(frozen=True, slots=True)
class EndpointHandle:
    """Endpoint of an actor.

    `fanout` and `route` are TorchForge's names for the calls of a service, `choose` Monarch's.
    """

    group: ActorGroup
    name: str

    def call(self, *args: Any, **kwargs: Any) -> ActorFuture[RankResults]:
        """Run the endpoint on all ranks and return the results of all."""
        return ActorFuture(self._submit(args, kwargs), RankResults)

    def call_one(self, *args: Any, **kwargs: Any) -> ActorFuture[Any]:
        """Run the endpoint on all ranks and return the result of the first."""
        return ActorFuture(self._submit(args, kwargs), lambda results: results[0])

    fanout = call
    route = call_one
    choose = call_one

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Run the endpoint on all ranks, without a result. Errors are logged."""
        for each in self._submit(args, kwargs):
            each.add_done_callback(self._log_error)

    def _log_error(self, finished: Future[Any]) -> None:
        error = finished.exception()
        if error is not None:
            log.error("%s.%s failed", self.group.title, self.name, exc_info=error)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Future[Any]]:
        return [
            self.group.submit(rank, self.name, args, kwargs) for rank in range(self.group.ranks)
        ]
