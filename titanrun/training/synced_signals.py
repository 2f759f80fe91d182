"""Requests to stop or save, synchronized so that all ranks act at the same step."""

import signal

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.distributed.device import is_accelerator
from titanrun.training.signal_requests import SignalRequests


class SyncedSignals:
    """Signals of all ranks as of the last `sync`.

    On an accelerator the values sent by one call are read by the next call: reading them
    immediately would wait for the step that was just queued.
    """

    def __init__(self, own: SignalRequests, device: torch.device) -> None:
        self.stop_signal: str | None = None
        self._local_signals = own
        self._device = device
        self._save = False
        self._pending: tuple[Tensor, torch.Event | None] | None = None

    @property
    def should_stop(self) -> bool:
        """Whether the run shall save and stop after the current step."""
        return self.stop_signal is not None

    def pop_save_request(self) -> bool:
        """Return whether a save was requested since the last call."""
        asked, self._save = self._save, False
        return asked

    def sync(self) -> None:
        """Combine the requests of all ranks. Collective: all ranks must call this equally often."""
        if is_accelerator(self._device):
            self._finish_sync()
        self._start_sync()
        if not is_accelerator(self._device):
            self._finish_sync()

    def _start_sync(self) -> None:
        stop = (
            0
            if self._local_signals.stop_signal is None
            else int(signal.Signals[self._local_signals.stop_signal])
        )
        wishes = torch.tensor(
            [stop, int(self._local_signals.pop_save_request())], dtype=torch.int32
        ).to(self._device, non_blocking=True)
        dist.all_reduce(wishes, dist.ReduceOp.MAX)
        if not is_accelerator(self._device):
            self._pending = (wishes, None)
            return
        on_host = torch.empty_like(wishes, device="cpu", pin_memory=True)
        on_host.copy_(wishes, non_blocking=True)
        arrived = torch.Event(self._device.type)
        arrived.record()
        self._pending = (on_host, arrived)

    def _finish_sync(self) -> None:
        if self._pending is None:
            return
        wishes, arrived = self._pending
        self._pending = None
        if arrived is not None:
            arrived.synchronize()
        stop, save = wishes.tolist()
        self._save = self._save or bool(save)
        if stop and not self.should_stop:
            self.stop_signal = signal.Signals(stop).name
