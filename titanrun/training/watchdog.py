"""Watchdog thread that detects a hanging rank by missing heartbeats."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from titanrun.training.config import GuardConfig

WatchdogPhase = Literal["build", "first step", "step", "save"]
# upper bound of the check frequency, relative to the shortest time limit
CHECKS_PER_LIMIT = 10
MAX_CHECK_INTERVAL_SECONDS = 5.0
# a save may take this many times as long as the last one, and at least these seconds: storage that
# others use too is often much slower for minutes
SAVE_LIMIT_FACTOR = 10
MIN_SAVE_LIMIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Hang:
    """Phase in which a rank hangs, and seconds since its last heartbeat.

    Args:
        phase: the phase.
        seconds: seconds since the last heartbeat.
        step: the last completed step.
        limit: the limit of the phase in seconds.
        last_save_seconds: duration of the last save, if the limit follows from it.
    """

    phase: WatchdogPhase
    seconds: float
    step: int
    limit: float
    last_save_seconds: float | None = None


class Watchdog:
    """Context manager that calls `on_hang` once if a phase exceeds its time limit.

    The call comes from the watchdog's own thread.

    Args:
        config: the limits.
        on_hang: the callback. The hung thread does not take part in it.
        clock: monotonic seconds, independent of changes to the system clock.
    """

    def __init__(
        self,
        config: GuardConfig,
        on_hang: Callable[[Hang], None] = lambda hang: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits: dict[WatchdogPhase, int | None] = {
            "build": config.build_timeout_seconds,
            "first step": config.first_step_timeout_seconds,
            "step": config.step_timeout_seconds,
            "save": config.save_timeout_seconds,
        }
        self.on_hang = on_hang
        self.clock = clock
        self.phase: WatchdogPhase = "build"
        self._last_save_seconds: float | None = None
        self._step, self._is_paused = 0, False
        self._last_heartbeat = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._last_heartbeat = self.clock()
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
        """Stop watching. Later work may wait for other ranks without a limit."""
        self._ended.set()

    def record_heartbeat(self) -> None:
        """Record a heartbeat."""
        self._last_heartbeat = self.clock()

    def start_first_step(self) -> None:
        """Start the phase of the first step: the run is built."""
        self.phase = "first step"
        self.record_heartbeat()

    def after_step(self, step: int) -> None:
        """Record the end of a step."""
        self._step = step
        self.phase = "step"
        self.record_heartbeat()

    @contextmanager
    def watch_save(self, last_save_seconds: float | None = None) -> Iterator[None]:
        """Apply the time limit of a checkpoint save within the block.

        Args:
            last_save_seconds: duration of the last save, from which a lower limit follows. None: it
                is not known, or the block does more than that save did.
        """
        before = self.phase
        self._last_save_seconds, self.phase = last_save_seconds, "save"
        self.record_heartbeat()
        try:
            yield
        finally:
            self.phase = before
            self.record_heartbeat()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Apply no limit within the block, which has one of its own."""
        self._is_paused = True
        try:
            yield
        finally:
            self.record_heartbeat()
            self._is_paused = False

    def find_hang(self) -> Hang | None:
        """Return the current hang, or None."""
        if self._is_paused:
            return None
        phase, seconds = self.phase, self.clock() - self._last_heartbeat
        limit, last_save_seconds = self.compute_limit(phase)
        if limit is None or seconds <= limit:
            return None
        return Hang(phase, seconds, self._step, limit, last_save_seconds)

    def compute_limit(self, phase: WatchdogPhase) -> tuple[float | None, float | None]:
        """Return the limit, and the duration of the last save if the limit follows from it."""
        limit, last = self.limits[phase], self._last_save_seconds
        if phase != "save" or limit is None or last is None:
            return limit, None
        bound = max(MIN_SAVE_LIMIT_SECONDS, SAVE_LIMIT_FACTOR * last)
        return (bound, last) if bound < limit else (limit, None)

    def _watch(self) -> None:
        shortest = min(limit for limit in self.limits.values() if limit is not None)
        while not self._ended.wait(min(shortest / CHECKS_PER_LIMIT, MAX_CHECK_INTERVAL_SECONDS)):
            if (found := self.find_hang()) is not None:
                self.on_hang(found)
                return
