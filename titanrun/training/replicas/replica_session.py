"""What the parts of a training loop share about the replica groups of the current step."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.step_attempt import StepAttempt
from titanrun.training.replicas.group_signals import GroupSignals

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

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over the groups, in place."""

    def should_commit(self) -> bool:
        """Return whether the attempt counts."""
        ...

    def describe_failure(self) -> str:
        """Return why the attempt did not count."""
        ...

    def close(self) -> None:
        """Leave the other groups."""


class ReplicaSession:
    """Attempts of this group at steps: who takes part, whether they counted, and who writes.

    The first group of a step writes its checkpoint, metrics and status.

    Args:
        groups: communication with the other groups.
        signals: requests to stop or save, of all groups.
        size: groups of the run.
        device: the device whose random state an attempt changes.
        events: file of this group's events. None on other ranks than its first.
    """

    def __init__(
        self,
        groups: Groups,
        signals: GroupSignals,
        *,
        size: int,
        device: torch.device,
        events: Path | None,
    ) -> None:
        self.groups, self.signals = groups, signals
        self.is_writer, self.has_committed, self.is_over = False, False, False
        self._size, self._device, self._events = size, device, events
        self._attempt: StepAttempt | None = None
        self._rng_states: dict[str, Tensor] = {}
        self._writer_listeners: list[Callable[[bool], None]] = []
        self._attempt_listeners: list[Callable[[], None]] = []

    def add_writer_listener(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` at each change of whether this group writes."""
        self._writer_listeners.append(listener)

    def add_attempt_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the groups of a step are known."""
        self._attempt_listeners.append(listener)

    def start_attempt(self) -> StepAttempt:
        """Wait for the groups of the next step, and return who takes part."""
        self.signals.collect()
        before, attempt = self._attempt, self.groups.start_attempt()
        self._attempt, self.has_committed = attempt, False
        if before is None:
            self.record("joined", attempt.step)
        if attempt.has_healed:
            self.record("healed", attempt.step)
        if before is None or before.num_groups != attempt.num_groups:
            log.info(
                "step %d: %d of %d replica groups", attempt.step + 1, attempt.num_groups, self._size
            )
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

    def end(self) -> None:
        """Record that the run has its last checkpoint.

        Its writer may have died before it recorded that the run has finished.
        """
        self.is_over = True
        self._set_writer(True)

    def close(self) -> None:
        """Leave the other groups."""
        self.groups.close()

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

    def _set_writer(self, is_writer: bool) -> None:
        if is_writer == self.is_writer:
            return
        self.is_writer = is_writer
        for listener in self._writer_listeners:
            listener(is_writer)
