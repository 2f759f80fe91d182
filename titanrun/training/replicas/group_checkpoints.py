"""Checkpoints of a run of replica groups: one group writes, all of them load."""

from dataclasses import dataclass

from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.training.replicas.replica_session import ReplicaSession


@dataclass(frozen=True, slots=True)
class GroupCheckpoints:
    """Checkpoint manager that saves only if this group writes, and no step twice."""

    manager: CheckpointManager
    session: ReplicaSession

    @property
    def last_save_seconds(self) -> float | None:
        """Duration of the last save of this process, None before it."""
        return self.manager.last_save_seconds

    def prepare(self) -> None:
        """Prepare for saving."""
        self.manager.prepare()

    def save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        """Save the step, unless another group writes, or a lost one has saved it."""
        steps = self.manager.store.list_complete_steps() if self.session.is_writer else ()
        if self.session.is_writer and self.manager.train_state.step not in steps:
            self.manager.save(is_last=is_last, validation_loss=validation_loss)

    def save_seed(self) -> None:
        """Save the initial weights: a rule forbids it with replica groups."""
        raise AssertionError("a rule forbids seed checkpoints of replica groups")

    def check(self) -> None:
        """Do nothing: saves are not in the background."""

    def rollback(self) -> int | None:
        """Roll back: a rule forbids it with replica groups."""
        raise AssertionError("a rule forbids rollbacks of replica groups")
