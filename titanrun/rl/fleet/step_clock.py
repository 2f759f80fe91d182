"""Clock of the trainer: what the time of its steps goes to."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

# validation is no part of a step. `other` is what has no name: logs, checkpoints, signals
StepPhase = Literal["idle", "pull", "train", "push", "other", "validation"]


@dataclass(slots=True)
class StepClock:
    """Seconds of each phase. It is always in exactly one.

    One thread changes the phase. Others may read `training_seconds`.
    """

    seconds: dict[StepPhase, float] = field(default_factory=lambda: defaultdict(float))
    phase: StepPhase = "other"
    _start: float = field(default_factory=time.monotonic)
    _training_seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def training_seconds(self) -> float:
        """Seconds since the start of the run, without validation."""
        with self._lock:
            running = 0.0 if self.phase == "validation" else time.monotonic() - self._start
            return self._training_seconds + running

    def enter(self, phase: StepPhase) -> None:
        """End the current phase and start another."""
        with self._lock:
            now = time.monotonic()
            self.seconds[self.phase] += now - self._start
            if self.phase != "validation":
                self._training_seconds += now - self._start
            self.phase, self._start = phase, now

    @contextmanager
    def within(self, phase: StepPhase) -> Iterator[None]:
        """Be in a phase within the block, and in the current one afterwards."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def wait_for(self, phase: Literal["idle", "pull"]) -> None:
        """Name what is waited for. Validation stays validation, whatever it waits for."""
        if self.phase not in (phase, "validation"):
            self.enter(phase)

    def pop_seconds(self) -> dict[StepPhase, float]:
        """Return the seconds of each phase since the last call."""
        self.enter(self.phase)
        found, self.seconds = self.seconds, defaultdict(float)
        return found
