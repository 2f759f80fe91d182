"""How often a run may leave an update out, or go back, before it gives up."""

from dataclasses import dataclass

from titanrun.training.config import GuardConfig
from titanrun.training.finite import NonFinite


@dataclass(slots=True)
class Recovery:
    """Counts what went wrong since the last good sign."""

    config: GuardConfig
    skips_in_a_row: int = 0
    rollbacks: int = 0
    worst_step: int = 0
    _skipped: int = 0

    def after_good_step(self) -> None:
        """An update was made."""
        self.skips_in_a_row = 0

    def after_save(self, step: int) -> None:
        """A good checkpoint was saved: one behind every bad step means that the run got over them."""
        if step > self.worst_step:
            self.rollbacks = 0

    def count_skip(self, error: NonFinite) -> None:
        """One more update is left out because of `error`. Raises it where that is one too many."""
        self.skips_in_a_row += 1
        self._skipped += 1
        if self.skips_in_a_row > self.config.max_skips:
            raise error.because(
                f"the {self.config.max_skips} updates before were skipped (guard.max_skips)"
            )

    def count_rollback(self, error: NonFinite) -> None:
        """The run goes back once more because of `error`. Raises it where that is once too often."""
        self.worst_step = max(self.worst_step, error.step)
        self.rollbacks += 1
        if self.rollbacks > self.config.max_rollbacks:
            raise error.because(
                f"the run went back {self.config.max_rollbacks} times already (guard.max_rollbacks)"
            )

    def take(self) -> dict[str, float]:
        """The updates left out since the last call as a metric; empty where none was."""
        skipped, self._skipped = self._skipped, 0
        return {"guard/skipped_steps": skipped} if skipped else {}
