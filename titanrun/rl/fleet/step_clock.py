"""Clock of the trainer: what the time of its steps goes to."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

# validation is no part of a step. `other` is what has no name: logs, checkpoints, signals
StepPhase = Literal["idle", "pack", "train", "push", "other", "validation"]


@dataclass(slots=True)
class StepClock:
    """Seconds of each phase. It is always in exactly one."""

    seconds: dict[StepPhase, float] = field(default_factory=lambda: defaultdict(float))
    phase: StepPhase = "other"
    _start: float = field(default_factory=time.monotonic)

    def enter(self, phase: StepPhase) -> None:
        """End the current phase and start another."""
        now = time.monotonic()
        self.seconds[self.phase] += now - self._start
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

    def pop_seconds(self) -> dict[StepPhase, float]:
        """Return the seconds of each phase since the last call."""
        self.enter(self.phase)
        found, self.seconds = self.seconds, defaultdict(float)
        return found
