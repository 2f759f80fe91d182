"""Checkpoints of a run of replica groups: one group writes, all of them load."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.training.replicas.group_session import GroupSession


@dataclass(frozen=True, slots=True)
class GroupCheckpoints:
    """Checkpoint manager that saves only if this group writes, and no step twice.

    Args:
        manager: saves and loads.
        session: knows who writes.
        use_weights: puts the weights to save into the model within a block.
    """

    manager: CheckpointManager
    session: GroupSession
    use_weights: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def last_save_seconds(self) -> float | None:
        """Duration of the last save of this process, None before it."""
        return self.manager.last_save_seconds

    def prepare(self) -> None:
        """Prepare for saving."""
        self.manager.prepare()

    def save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        """Save the step, unless another group writes, or a lost one has saved it.

        A step without a sync is saved only if it is the last: with the weights of the sync before.
        """
        if not self.session.is_writer or not (self.session.can_save or is_last):
            return
        if self.manager.train_state.step not in self.manager.store.list_complete_steps():
            self.manager.layout = {**self.manager.layout, **self.session.describe_layout()}
            with self.use_weights():
                self.manager.save(is_last=is_last, validation_loss=validation_loss)

    def save_seed(self) -> None:
        """Save the initial weights: a rule forbids it with replica groups."""
        raise AssertionError("a rule forbids seed checkpoints of replica groups")

    def check(self) -> None:
        """Do nothing: saves are not in the background."""

    def rollback(self) -> int | None:
        """Roll back: a rule forbids it with replica groups."""
        raise AssertionError("a rule forbids rollbacks of replica groups")
