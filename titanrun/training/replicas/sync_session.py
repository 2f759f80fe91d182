"""Syncs of replica groups that train on their own in between."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.training.replicas.group_session import Groups, GroupSession
from titanrun.training.replicas.group_signals import GroupSignals
from titanrun.training.train_state import TrainState

log = logging.getLogger(__name__)


class SyncSession(GroupSession):
    """Rounds of communication of groups that sync their weights every few steps.

    The first of the groups that began a sync writes metrics and status until the next one, and its
    checkpoint. The version of a group's state is twice the step of its last sync, and one more
    while it trains: a group that returns takes over the state of any that trains.

    Args:
        groups: communication with the other groups.
        signals: requests to stop or save, of all groups. They count at a sync.
        state: counters of the run. Its step is that of a checkpoint, or 0.
        config: the section of the recipe.
        events: file of this group's events. None on other ranks than its first.
    """

    def __init__(
        self,
        groups: Groups,
        signals: GroupSignals,
        state: TrainState,
        *,
        config: FaultToleranceConfig,
        events: Path | None,
    ) -> None:
        super().__init__(groups, signals, size=config.group_size, events=events)
        self.sync_index, self.has_joined_sync = 0, False
        self._state, self._config, self._has_round = state, config, False

    def open(self) -> None:
        """Get ready to join the other groups."""
        self.groups.open(2 * self._state.step)

    def join(self) -> None:
        """Wait for the other groups, before the first step of this one.

        If they are at a sync, this group takes part in it. Otherwise none of them has begun.
        """
        while True:
            self.has_joined_sync = self._start_round(is_at_sync=False)
            # with all groups at the start, the next version is that of a group that trains
            if self.has_joined_sync or self.groups.should_commit():
                return

    @property
    def has_healed(self) -> bool:
        """Whether this group took over a state when it joined the others."""
        return self._attempt is not None and self._attempt.has_healed

    def open_round(self) -> None:
        """Wait for the groups of the sync that begins. A group that is behind takes over a state.

        A group that has just joined the others in the midst of theirs has waited already.
        """
        if not self._has_round:
            self._start_round(is_at_sync=True)

    def start_average(self, tensor: Tensor) -> Any:
        """Start to average a tensor over the groups of the sync."""
        return self.groups.start_average(tensor)

    def close_round(self) -> bool:
        """Return whether the sync counts, on all ranks of the group."""
        self._has_round = False
        wishes = self.groups.all_reduce_sum_(self.signals.wishes)
        self.can_save = self.groups.should_commit()
        if self.can_save:
            self.groups.set_version(2 * self._state.step + 1)
            self.signals.set_sums(wishes)
        else:
            reason = self.groups.describe_failure()
            log.info("step %d: the sync does not count: %s", self._state.step, reason)
        self.record("synced" if self.can_save else "failed", self._state.step)
        return self.can_save

    def check_joined(self) -> None:
        """Check that the sync in which this group joined the others counts.

        Raises:
            ProblemsFound: it does not. The group starts again.
        """
        if not self.can_save:
            reason = self.groups.describe_failure()
            raise problem_error(
                "internal",
                f"this replica group could not join the others: {reason}",
                path=("fault_tolerance",),
                hint="the launcher starts the group again",
            )

    def _start_round(self, *, is_at_sync: bool) -> bool:
        """Wait for the other groups. Return whether one of them is at a sync."""
        self.signals.collect()
        attempt = self._wait_for_groups()
        at_sync = torch.zeros(attempt.num_groups, dtype=torch.float64)
        at_sync[attempt.group_index] = is_at_sync
        self.groups.all_reduce_sum_(at_sync)
        syncing = [] if self.groups.has_failed else at_sync.nonzero().flatten().tolist()
        self._has_round = is_at_sync or bool(syncing)
        config, step = self._config, self._state.step
        self.sync_index = (step + config.fragment_sync_delay) // config.sync_interval - 1
        self._set_attempt(attempt, step)
        self._set_writer(attempt.group_index == (syncing or [0])[0])
        for listener in self._attempt_listeners:
            listener()
        return bool(syncing)
