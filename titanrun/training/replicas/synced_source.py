"""Step source of a rank whose replica group syncs weights with the others every few steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from titanrun.components.data.dealt_dataloader import DealtDataLoader
from titanrun.training.data_source import DataSource
from titanrun.training.replicas.sync_session import SyncSession
from titanrun.training.replicas.synced_engine import SyncedEngine
from titanrun.training.train_hook import StepInput
from titanrun.training.train_state import TrainState


class WeightSync(Protocol):
    """Syncs of weights between groups, see `titanrun.distributed.semi_sync.SemiSync`."""

    def count_step(self) -> None:
        """Count a step, after which weights are synced if it is time."""

    def skip_to_sync(self) -> None:
        """Take part in the sync that the other groups have begun."""


@dataclass(slots=True, kw_only=True)
class SyncedSource:
    """Source of this group's fixed share of each step.

    Args:
        source: source of the batches.
        dataloader: its loader.
        session: rounds of communication with the other groups.
        sync: syncs weights.
        engine: the engine that trains them.
        num_groups: groups of the run.
        has_run_ended: returns whether the run has its last checkpoint. Collective over the ranks of
            the group.
    """

    source: DataSource
    dataloader: DealtDataLoader
    session: SyncSession
    sync: WeightSync
    engine: SyncedEngine
    num_groups: int
    has_run_ended: Callable[[], bool]
    _has_joined: bool = False
    _first_row: int = 0
    _pieces: list[int] = field(default_factory=list)

    def start(self, state: TrainState) -> None:
        """Join the other groups."""
        self.session.open()

    def has_next(self) -> bool:
        """Return whether there is another global batch, and the run has not ended elsewhere."""
        return not self.session.is_over and self.source.has_next()

    def next_input(self) -> StepInput | None:
        """Return this rank's batches.

        Return None after a sync in which this group joined the others, and if these ended the run.
        """
        if not self._has_joined:
            self._has_joined = True
            if not self._join():
                return None
        self.session.can_save = False
        self._first_row = self.dataloader.state_dict()["rows_read"]
        self._pieces = list(self.dataloader.deal(self.session.groups.group, self.num_groups))
        return self.source.next_input()

    def on_update(self, step: int) -> None:
        """Record the sequences of the step, and sync weights if it is time."""
        self.session.record("trained", step, first_row=self._first_row, pieces=self._pieces)
        self.sync.count_step()
        self.engine.notify_weights_changed()

    def on_rollback(self, step: int) -> None:
        """Do nothing: a rule forbids rollbacks with replica groups."""

    def collect_metrics(self, recorded: dict[str, float], inp: StepInput) -> dict[str, float]:
        """Return the recorded metrics."""
        return recorded

    def _join(self) -> bool:
        """Join the other groups. Return whether a step follows at once."""
        self.session.join()
        if self.session.has_joined_sync:
            self.sync.skip_to_sync()
            self.engine.notify_weights_changed()
            self.session.check_joined()
            return False
        if not self.session.has_healed and self.has_run_ended():
            self.session.end()
            return False
        return True
