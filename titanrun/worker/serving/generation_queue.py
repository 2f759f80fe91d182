"""A few generations at a time, each in a thread; further requests wait in a queue."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
IsGone = Callable[[], bool]


class QueueFullError(Exception):
    """Too many requests are waiting."""


@dataclass(slots=True)
class GenerationQueue:
    """Queue of requests to a model.

    Args:
        limit: most requests that wait for those that run.
        num_threads: most requests that run at a time.
        num_open: requests that run or wait.
    """

    limit: int
    num_threads: int = 1
    num_open: int = 0
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="generate")

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait."""
        return max(0, self.num_open - self.num_threads)

    @property
    def is_full(self) -> bool:
        """Whether no further request may wait."""
        return self.num_open >= self.limit + self.num_threads

    @asynccontextmanager
    async def start(self, work: Callable[[IsGone], T]) -> AsyncIterator["asyncio.Future[T]"]:
        """Yield the future result of `work`, which gets a function that says when to give up.

        Leaving the block gives up.

        Raises:
            QueueFullError: Too many requests are waiting.
        """
        if self.is_full:
            raise QueueFullError
        gone = threading.Event()
        self.num_open += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, gone.is_set)
        future.add_done_callback(self._count_done)
        try:
            yield future
        finally:
            gone.set()

    def _count_done(self, future: "asyncio.Future[T]") -> None:
        self.num_open -= 1
        if not future.cancelled():
            future.exception()  # retrieved, though nobody waits for it any more

    def close(self) -> None:
        """Forget what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
