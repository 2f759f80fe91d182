"""Requests to stop or save that every rank answers at the same step, whichever rank received the signal."""

import signal

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.distributed.device import is_accelerator
from titanrun.training.signals import SHELL_SIGNAL_BASE, SignalRequests


class AgreedSignals:
    """The signals of all ranks, as `agree` last found them.

    On an accelerator what one call sends is read by the next: reading it at once would wait for the step that was just queued.
    """

    def __init__(self, own: SignalRequests, device: torch.device) -> None:
        self.stop_signal: str | None = None
        self._own = own
        self._device = device
        self._save = False
        self._answer: tuple[Tensor, torch.Event | None] | None = None

    @property
    def stop(self) -> bool:
        """Whether the run shall save and stop after the step it is in."""
        return self.stop_signal is not None

    @property
    def exit_code(self) -> int:
        """The shell's convention for a process that the stop signal ended."""
        assert self.stop_signal is not None
        return SHELL_SIGNAL_BASE + signal.Signals[self.stop_signal]

    def take_save(self) -> bool:
        """Whether a save was asked for since the last call."""
        asked, self._save = self._save, False
        return asked

    def agree(self) -> None:
        """Hears all ranks; every rank must call it equally often."""
        if is_accelerator(self._device):
            self._read()
        self._ask()
        if not is_accelerator(self._device):
            self._read()

    def _ask(self) -> None:
        stop = 0 if self._own.stop_signal is None else int(signal.Signals[self._own.stop_signal])
        wishes = torch.tensor([stop, int(self._own.take_save())], dtype=torch.int32).to(
            self._device, non_blocking=True
        )
        dist.all_reduce(wishes, dist.ReduceOp.MAX)
        if not is_accelerator(self._device):
            self._answer = (wishes, None)
            return
        on_host = torch.empty_like(wishes, device="cpu", pin_memory=True)
        on_host.copy_(wishes, non_blocking=True)
        arrived = torch.Event(self._device.type)
        arrived.record()
        self._answer = (on_host, arrived)

    def _read(self) -> None:
        if self._answer is None:
            return
        wishes, arrived = self._answer
        self._answer = None
        if arrived is not None:
            arrived.synchronize()
        stop, save = wishes.tolist()
        self._save = self._save or bool(save)
        if stop and not self.stop:
            self.stop_signal = signal.Signals(stop).name
