"""Attempts of a replica group at steps that all groups share."""

import logging
from pathlib import Path

import torch
from torch import Tensor

from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.step_attempt import StepAttempt
from titanrun.training.replicas.group_session import Groups, GroupSession
from titanrun.training.replicas.group_signals import GroupSignals

log = logging.getLogger(__name__)


class ReplicaSession(GroupSession):
    """Attempts of this group at steps: who takes part, whether they counted, and who writes.

    The first group of a step writes its checkpoint, metrics and status.

    Args:
        groups: communication with the other groups.
        signals: requests to stop or save, of all groups.
        size: groups of the run.
        device: the device whose random state an attempt changes.
        events: file of this group's events. None on other ranks than its first.
        saved_groups: groups that took part in the step of the checkpoint that was loaded.
    """

    def __init__(
        self,
        groups: Groups,
        signals: GroupSignals,
        *,
        size: int,
        device: torch.device,
        events: Path | None,
        saved_groups: int | None = None,
    ) -> None:
        super().__init__(groups, signals, size=size, events=events, saved_groups=saved_groups)
        self.has_committed, self._device = False, device
        self._rng_states: dict[str, Tensor] = {}

    def start_attempt(self) -> StepAttempt:
        """Wait for the groups of the next step, and return who takes part."""
        self.signals.collect()
        attempt, self.has_committed = self._wait_for_groups(), False
        self._set_attempt(attempt, attempt.step)
        self._set_writer(attempt.group_index == 0)
        self._rng_states = get_rng_states(self._device)
        for listener in self._attempt_listeners:
            listener()
        return attempt

    def sum_valid_tokens(self, count: Tensor) -> Tensor:
        """Return the sum of a count over the groups, and sum their requests with it."""
        own = self.signals.wishes.to(count.device)
        sums = self.groups.all_reduce_sum_(torch.cat([count.reshape(1).to(own.dtype), own]))
        self.signals.set_sums(sums[1:])
        return sums[0].to(count.dtype)

    def decide(self) -> bool:
        """Return whether the attempt counts, on all ranks of the group."""
        self.has_committed = self.groups.should_commit()
        return self.has_committed

    def _describe_change(self, before: int | None) -> str:
        return (
            f", {before} before; random draws such as dropout depend on their number, the order of "
            "the data does not"
        )

    def undo(self) -> None:
        """Restore the random states of an attempt that does not count."""
        assert self._attempt is not None
        set_rng_states(self._rng_states, self._device)
        self.record("retried", self._attempt.step + 1)
        log.info(
            "step %d: trying again without its result: %s",
            self._attempt.step + 1,
            self.groups.describe_failure(),
        )
