"""Limits on skipped updates and rollbacks."""

from dataclasses import dataclass

from titanrun.training.config import GuardConfig
from titanrun.training.nonfinite import NonFiniteError


@dataclass(slots=True)
class RecoveryBudget:
    """Budget of skipped updates and rollbacks since the last successful step or save."""

    config: GuardConfig
    consecutive_skips: int = 0
    num_rollbacks: int = 0
    last_bad_step: int = 0
    _unreported_skips: int = 0

    def record_update(self) -> None:
        """Reset the count of consecutive skipped updates."""
        self.consecutive_skips = 0

    def record_save(self, step: int) -> None:
        """Reset the count of rollbacks if the checkpoint of `step` is newer than every bad step."""
        if step > self.last_bad_step:
            self.num_rollbacks = 0

    def record_skip(self, error: NonFiniteError) -> None:
        """Count a skipped update. Raise `error` if guard.max_skips is exceeded."""
        self.consecutive_skips += 1
        self._unreported_skips += 1
        if self.consecutive_skips > self.config.max_skips:
            raise error.with_reason(
                f"the {self.config.max_skips} updates before were skipped (guard.max_skips)"
            )

    def record_rollback(self, error: NonFiniteError) -> None:
        """Count a rollback. Raise `error` if guard.max_rollbacks is exceeded."""
        self.last_bad_step = max(self.last_bad_step, error.step)
        self.num_rollbacks += 1
        if self.num_rollbacks > self.config.max_rollbacks:
            raise error.with_reason(
                f"the run went back {self.config.max_rollbacks} times already (guard.max_rollbacks)"
            )

    def pop_metrics(self) -> dict[str, float]:
        """Return the number of updates skipped since the last call as a metric.

        Empty if there were none.
        """
        skipped, self._unreported_skips = self._unreported_skips, 0
        return {"guard/skipped_steps": skipped} if skipped else {}
