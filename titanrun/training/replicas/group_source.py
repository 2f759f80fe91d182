"""Step source of a rank in one of several replica groups."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from titanrun.components.data.dealt_dataloader import DealtDataLoader
from titanrun.training.data_source import DataSource
from titanrun.training.replicas.replica_session import ReplicaSession
from titanrun.training.train_hook import StepInput
from titanrun.training.train_state import TrainState


@dataclass(slots=True, kw_only=True)
class GroupSource:
    """Source of this group's part of each step, dealt when the groups of the step are known.

    Args:
        source: source of the batches.
        dataloader: its loader.
        session: attempts at steps.
        has_run_ended: returns whether the run has its last checkpoint. Collective over the ranks of
            the group.
    """

    source: DataSource
    dataloader: DealtDataLoader
    session: ReplicaSession
    has_run_ended: Callable[[], bool]
    _state: TrainState = field(default_factory=TrainState)
    _before: dict[str, Any] = field(default_factory=dict)
    _pieces: list[int] = field(default_factory=list)
    _has_joined: bool = False

    def start(self, state: TrainState) -> None:
        """Join the other groups."""
        self._state = state
        self.session.groups.open(state.step)

    def has_next(self) -> bool:
        """Return whether there is another global batch, and the run has not ended elsewhere."""
        return not self.session.is_over and self.source.has_next()

    def next_input(self) -> StepInput | None:
        """Wait for the groups of the step and return this rank's batches.

        Return None if the other groups ended the run while this one was away.
        """
        attempt = self.session.start_attempt()
        if not self._has_joined and not attempt.has_healed and self.has_run_ended():
            self.session.end()
            return None
        self._has_joined = True
        assert attempt.step == self._state.step, "the step of the groups is that of the run"
        self._before = self.dataloader.state_dict()
        self._pieces = list(self.dataloader.deal(attempt.group_index, attempt.num_groups))
        return self.source.next_input()

    def undo_input(self) -> None:
        """Return to the position before the last input, which did not count."""
        self.dataloader.load_state_dict(self._before)

    def on_update(self, step: int) -> None:
        """Record the sequences that this group trained in the step."""
        self.session.record(
            "committed", step, first_row=self._before["rows_read"], pieces=self._pieces
        )

    def on_rollback(self, step: int) -> None:
        """Do nothing: a rule forbids rollbacks with replica groups."""

    def collect_metrics(self, recorded: dict[str, float], inp: StepInput) -> dict[str, float]:
        """Return the recorded metrics."""
        return recorded
