"""Training loops of a rank in one of several replica groups."""

from dataclasses import dataclass

from titanrun.training.loop import TrainLoop
from titanrun.training.replicas.group_session import GroupSession
from titanrun.training.replicas.group_source import GroupSource
from titanrun.training.replicas.replica_session import ReplicaSession
from titanrun.training.train_hook import TrainResult


# no slots: with them, `super()` would not work in a dataclass
@dataclass(kw_only=True)
class GroupTrainLoop(TrainLoop):
    """Loop that leaves the other groups at its end.

    Args:
        session: who takes part.
    """

    session: GroupSession

    def train(self) -> TrainResult:
        """Run the remaining steps. See `TrainLoop.train`."""
        # others may come back, or their lighthouse: the wait has a limit of its own
        self.session.watch_wait = self.watchdog.pause
        if self.state.step >= self.config.steps:
            self.session.end()
        try:
            return super().train()
        finally:
            self.session.close()

    def _build_result(self) -> TrainResult:
        if self.session.is_over:
            # the state of this group may be older: it goes with the process
            message = "finished: the other replica groups have trained to the end"
            return TrainResult("finished", self.config.steps, message)
        return super()._build_result()


@dataclass(kw_only=True)
class RetryingTrainLoop(GroupTrainLoop):
    """Loop that repeats a step in which another group was lost.

    Args:
        source: source of this group's part of each step.
        session: attempts at steps.
    """

    source: GroupSource
    session: ReplicaSession

    def _recover(self) -> bool:
        if self.session.has_committed:
            return super()._recover()
        self.session.undo()
        self.source.undo_input()
        # what the attempt recorded cannot be told from what earlier steps recorded
        self.step_metrics.reset()
        return False
