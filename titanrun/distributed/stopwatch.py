"""Adds up stretches of work: on the host by its clock, on an accelerator by events in its queue, without waiting for it."""

import time
from collections.abc import Callable

import torch

from titanrun.distributed.device import is_accelerator


class Stopwatch:
    """Time of work on a device and on its host, since `reset`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self._seconds = 0.0
        self._began: float | torch.Event | None = None
        self._began_on_host: float | None = None
        self._pairs: list[tuple[torch.Event, torch.Event]] = []

    def start(self) -> None:
        """A stretch on the device begins."""
        self._began = self._event() if is_accelerator(self.device) else time.perf_counter()

    def stop(self) -> None:
        """It ends; nothing happens where none has begun."""
        began, self._began = self._began, None
        if isinstance(began, float):
            self._seconds += time.perf_counter() - began
        elif began is not None:
            self._pairs.append((began, self._event()))

    def start_on_host(self) -> None:
        """A stretch on the host begins."""
        self._began_on_host = time.perf_counter()

    def stop_on_host(self) -> None:
        """It ends."""
        if self._began_on_host is not None:
            self._seconds += time.perf_counter() - self._began_on_host
        self._began_on_host = None

    def take(self) -> Callable[[], float]:
        """What was measured since `reset`, in seconds: a function to call when the device is done with it, which waits until then."""
        seconds, pairs = self._seconds, self._pairs
        self.reset()

        def total() -> float:
            if pairs:
                pairs[-1][1].synchronize()
            return seconds + sum(began.elapsed_time(ended) for began, ended in pairs) / 1000

        return total

    def _event(self) -> torch.Event:
        event = torch.Event(self.device.type, enable_timing=True)
        event.record()
        return event
