"""Requests to stop or save that all replica groups see at the same step."""

import torch
from torch import Tensor

from titanrun.distributed.spec.run_signals import STOP_SIGNALS
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.synced_signals import SyncedSignals


class GroupSignals:
    """Requests of all groups, as of the last step that counted.

    The groups sum their requests together with the tokens of a step, so a request counts in each
    group that has this step.

    Args:
        own: requests of this rank, or of the ranks of its group.
    """

    def __init__(self, own: SignalRequests | SyncedSignals) -> None:
        self.stop_signal: str | None = None
        self._own = own
        self._wants_save, self._save = False, False
        self._sums: Tensor | None = None

    @property
    def should_stop(self) -> bool:
        """Whether the run shall save and stop after the current step."""
        return self.stop_signal is not None

    @property
    def wishes(self) -> Tensor:
        """This group's requests: a save, and each signal to stop, as 0 or 1."""
        own = self._own.stop_signal
        return torch.tensor(
            [self._wants_save, *(own == number.name for number in STOP_SIGNALS)],
            dtype=torch.float64,
        )

    def pop_save_request(self) -> bool:
        """Return whether a save was requested since the last call."""
        asked, self._save = self._save, False
        return asked

    def collect(self) -> None:
        """Read the requests of this group. Collective over its ranks."""
        self._own.sync()
        self._wants_save = self._own.pop_save_request() or self._wants_save

    def set_sums(self, sums: Tensor) -> None:
        """Take the sums of all groups' requests. They count if the step does."""
        self._sums = sums

    def sync(self) -> None:
        """Apply the requests of the step, which counts."""
        if self._sums is None:
            return
        save, *stops = self._sums.tolist()
        self._sums = None
        self._save, self._wants_save = self._save or bool(save), False
        found = [number.name for number, count in zip(STOP_SIGNALS, stops, strict=True) if count]
        if found and not self.should_stop:
            self.stop_signal = found[0]
