"""Settings of the training loop, and its interface to a checkpoint manager."""

from dataclasses import dataclass
from typing import Protocol


class CheckpointManagerProtocol(Protocol):
    """Interface of checkpoint managers. See `CheckpointManager`."""

    @property
    def last_save_seconds(self) -> float | None:
        """Duration of the last save of this process, None before it."""
        ...

    def prepare(self) -> None:
        """Prepare for saving, so that a stop by signal waits for no imports."""
        ...

    def save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        """Save a checkpoint of the current step."""
        ...

    def save_seed(self) -> None:
        """Save the initial weights as a seed checkpoint."""
        ...

    def check(self) -> None:
        """Raise the error of a failed background save."""
        ...

    def rollback(self) -> int | None:
        """Restore the last good checkpoint and return its step, or None if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """Step counts and intervals of the loop.

    Args:
        steps: number of optimizer steps of the whole run, covered by the learning rate schedule.
        log_every: number of steps between logged lines.
        stop_after_step: step after which the run stops as if by a signal. None to run to the end.
    """

    steps: int
    log_every: int
    stop_after_step: int | None = None

    @property
    def last_step(self) -> int:
        """Last step of this process."""
        return self.steps if self.stop_after_step is None else min(self.steps, self.stop_after_step)
