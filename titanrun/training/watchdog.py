"""Notices that a rank no longer gets anywhere: a thread that looks at when the training loop last gave a sign of life."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from titanrun.training.config import GuardConfig

Phase = Literal["build", "first step", "step", "save"]
# how often it looks, at most: a share of the shortest time limit
LOOKS_PER_LIMIT = 10
LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Hang:
    """What a rank was doing when it stopped, and for how long it has not given a sign of life."""

    phase: Phase
    seconds: float
    step: int


class Watchdog:
    """While entered, calls `on_hang` once, from its own thread, when a phase takes longer than its limit.

    Args:
        config: the limits.
        on_hang: what to do; the hung thread knows nothing of it.
        clock: seconds that only go forward, whatever is done to the machine's clock.
    """

    def __init__(
        self,
        config: GuardConfig,
        on_hang: Callable[[Hang], None] = lambda hang: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits: dict[Phase, int | None] = {
            "build": config.build_timeout_seconds,
            "first step": config.first_step_timeout_seconds,
            "step": config.step_timeout_seconds,
            "save": config.save_timeout_seconds,
        }
        self.on_hang = on_hang
        self.clock = clock
        self.phase: Phase = "build"
        self._step = 0
        self._seen = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._seen = self.clock()
        if any(self.limits.values()):
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops watching: what follows waits for others as long as it must."""
        self._ended.set()

    def beat(self) -> None:
        """A sign of life."""
        self._seen = self.clock()

    def before_first_step(self) -> None:
        """The run is built."""
        self.phase = "first step"
        self.beat()

    def after_step(self, step: int) -> None:
        """A step is done."""
        self._step = step
        self.phase = "step"
        self.beat()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A checkpoint is saved within the block."""
        before, self.phase = self.phase, "save"
        self.beat()
        try:
            yield
        finally:
            self.phase = before
            self.beat()

    def hang(self) -> Hang | None:
        """What hangs now, if anything does."""
        phase, seconds = self.phase, self.clock() - self._seen
        limit = self.limits[phase]
        return Hang(phase, seconds, self._step) if limit is not None and seconds > limit else None

    def _watch(self) -> None:
        shortest = min(limit for limit in self.limits.values() if limit is not None)
        while not self._ended.wait(min(shortest / LOOKS_PER_LIMIT, LONGEST_PAUSE_SECONDS)):
            if (found := self.hang()) is not None:
                self.on_hang(found)
                return
