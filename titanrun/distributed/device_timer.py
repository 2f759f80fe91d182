"""Timer of work on a device: host clock, or events in the accelerator's queue.

Events do not make the host wait for the device.
"""

import time
from collections.abc import Callable

import torch

from titanrun.distributed.device import is_accelerator


class DeviceTimer:
    """Accumulated time of work on a device and on its host since `reset`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reset()

    def reset(self) -> None:
        """Discard all measurements."""
        self._seconds = 0.0
        self._began: float | torch.Event | None = None
        self._began_on_host: float | None = None
        self._pairs: list[tuple[torch.Event, torch.Event]] = []

    def start(self) -> None:
        """Start an interval on the device."""
        self._began = self._event() if is_accelerator(self.device) else time.perf_counter()

    def stop(self) -> None:
        """End the interval on the device, if one was started."""
        began, self._began = self._began, None
        if isinstance(began, float):
            self._seconds += time.perf_counter() - began
        elif began is not None:
            self._pairs.append((began, self._event()))

    def start_on_host(self) -> None:
        """Start an interval on the host."""
        self._began_on_host = time.perf_counter()

    def stop_on_host(self) -> None:
        """End the interval on the host, if one was started."""
        if self._began_on_host is not None:
            self._seconds += time.perf_counter() - self._began_on_host
        self._began_on_host = None

    def pop_elapsed(self) -> Callable[[], float]:
        """Reset the timer and return a function that returns the measured seconds.

        The function waits until the device has finished the measured work.
        """
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
