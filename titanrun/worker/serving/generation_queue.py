"""One generation at a time, in a thread; further requests wait in a queue."""

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
        limit: most requests that wait for the one that runs.
    """

    limit: int
    waiting: int = 0
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="generate")
    )

    @asynccontextmanager
    async def start(self, work: Callable[[IsGone], T]) -> AsyncIterator["asyncio.Future[T]"]:
        """Yield the future result of `work`, which gets a function that says when to give up.

        Leaving the block gives up.

        Raises:
            QueueFullError: Too many requests are waiting.
        """
        if self.waiting > self.limit:
            raise QueueFullError
        gone = threading.Event()
        self.waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, work, gone.is_set)
        future.add_done_callback(self._count_done)
        try:
            yield future
        finally:
            gone.set()

    def _count_done(self, future: "asyncio.Future[T]") -> None:
        self.waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieved, though nobody waits for it any more

    def close(self) -> None:
        """Forget what waits."""
        self._thread.shutdown(wait=False, cancel_futures=True)
