"""What the parts of a training loop share about the replica groups of a run."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from titanrun.distributed.step_attempt import StepAttempt
from titanrun.training.replicas.group_signals import GroupSignals

# in the layout of a manifest: the group that saved, and how many took part in the step
GROUP_OF_LAYOUT, GROUPS_OF_LAYOUT = "replica_group", "replica_groups"

log = logging.getLogger(__name__)


class Groups(Protocol):
    """Communication between groups, see `titanrun.distributed.replica_groups.ReplicaGroups`."""

    group: int

    def open(self, step: int) -> None:
        """Join the other groups."""

    def start_attempt(self) -> StepAttempt:
        """Wait for the groups of the next step."""
        ...

    def all_reduce_sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the groups, in place."""
        ...

    def start_average(self, tensor: Tensor) -> Any:
        """Start to average a tensor over the groups."""
        ...

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over the groups, in place."""

    def should_commit(self) -> bool:
        """Return whether the attempt counts."""
        ...

    def set_version(self, version: int) -> None:
        """Set the version of this group's state."""

    @property
    def has_failed(self) -> bool:
        """Whether something has failed since the last quorum."""
        ...

    def describe_failure(self) -> str:
        """Return why the attempt did not count."""
        ...

    def close(self) -> None:
        """Leave the other groups."""


class GroupSession:
    """Who takes part in the steps of a run, and who writes its checkpoints, metrics and status.

    Args:
        groups: communication with the other groups.
        signals: requests to stop or save, of all groups.
        size: groups of the run.
        events: file of this group's events. None on other ranks than its first.
        saved_groups: groups that took part in the step of the checkpoint that was loaded. None:
            there was no checkpoint.

    Attributes:
        watch_wait: returns the context in which this group waits for the others.
    """

    can_save = True
    """Whether the weights of this step are those of all groups."""

    def __init__(
        self,
        groups: Groups,
        signals: GroupSignals,
        *,
        size: int,
        events: Path | None,
        saved_groups: int | None = None,
    ) -> None:
        self.groups, self.signals = groups, signals
        self.is_writer, self.is_over = False, False
        self.watch_wait: Callable[[], AbstractContextManager[None]] = nullcontext
        self._size, self._events, self._saved_groups = size, events, saved_groups
        self._attempt: StepAttempt | None = None
        self._writer_listeners: list[Callable[[bool], None]] = []
        self._attempt_listeners: list[Callable[[], None]] = []

    def add_writer_listener(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` at each change of whether this group writes."""
        self._writer_listeners.append(listener)

    def add_attempt_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the groups of a step are known."""
        self._attempt_listeners.append(listener)

    def end(self) -> None:
        """Record that the run has its last checkpoint.

        Its writer may have died before it recorded that the run has finished.
        """
        self.is_over = True
        self._set_writer(True)

    def close(self) -> None:
        """Leave the other groups."""
        self.groups.close()

    def describe_layout(self) -> dict[str, int]:
        """Return this group and how many take part, for the manifest of a checkpoint."""
        count = {} if self._attempt is None else {GROUPS_OF_LAYOUT: self._attempt.num_groups}
        return {GROUP_OF_LAYOUT: self.groups.group, **count}

    def record(self, event: str, step: int, **values: object) -> None:
        """Append an event of this group to its file."""
        if self._events is None:
            return
        line = {
            "step": step,
            "event": event,
            "groups": None if self._attempt is None else self._attempt.num_groups,
            **values,
            "time": time.time(),
        }
        try:
            with self._events.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("cannot write %s, training continues: %s", self._events, error)
            self._events = None

    def _wait_for_groups(self) -> StepAttempt:
        """Wait for the groups of the next step or sync, at most `quorum_timeout_ms`."""
        with self.watch_wait():
            return self.groups.start_attempt()

    def _set_attempt(self, attempt: StepAttempt, step: int) -> None:
        """Record who takes part in the steps after `step`."""
        before, self._attempt = self._attempt, attempt
        if before is None:
            self.record("joined", step)
        elif lost := attempt.list_members_lost_since(before):
            self.record("left", step, left=lost)
        if attempt.has_healed:
            self.record("healed", step)
        count = self._saved_groups if before is None else before.num_groups
        if before is None or count != attempt.num_groups:
            change = "" if count in (None, attempt.num_groups) else self._describe_change(count)
            log.info(
                "step %d: %d of %d replica groups%s",
                step + 1,
                attempt.num_groups,
                self._size,
                change,
            )

    def _describe_change(self, before: int | None) -> str:
        """Return what differs once another number of groups takes part than `before`."""
        return ""

    def _set_writer(self, is_writer: bool) -> None:
        if is_writer == self.is_writer:
            return
        self.is_writer = is_writer
        for listener in self._writer_listeners:
            listener(is_writer)
