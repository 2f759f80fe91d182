"""How fast the run is: tokens and FLOP per second of a device, time spent waiting for data, peak memory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from titanrun.distributed.device import peak_memory_bytes, reset_peak_memory, wait_for

GIB = 2**30


class Throughput:
    """Measures the intervals between logged lines. Time of validation and checkpoints is left out.

    Args:
        flops_per_token: of a forward and backward pass of the model.
        peak_flops: the device's FLOP/s; None where it is not known, and then there is no MFU.
        device: whose memory is measured.
        ranks_per_row: ranks that work on the same tokens together (tensor, context and pipeline parallel).
        clock: seconds, never going back.
    """

    def __init__(
        self,
        *,
        flops_per_token: float,
        peak_flops: float | None,
        device: torch.device,
        ranks_per_row: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.device = device
        self.ranks_per_row = ranks_per_row
        self.clock = clock
        self.start()

    def start(self) -> None:
        """Begin an interval now, as right before the first step."""
        self._began = self.clock()
        self._steps = 0
        self._tokens = 0
        self._data_seconds = 0.0
        self._paused_seconds = 0.0
        reset_peak_memory(self.device)

    def count_step(self, tokens: int) -> None:
        """One optimizer step is done that consumed `tokens` on this rank."""
        self._steps += 1
        self._tokens += tokens

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The block fetches data."""
        began = self.clock()
        try:
            yield
        finally:
            self._data_seconds += self.clock() - began

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The block is no training: its time counts for nothing. Waits for the device at both ends, so that no work is misplaced."""
        wait_for(self.device)
        began = self.clock()
        try:
            yield
        finally:
            wait_for(self.device)
            self._paused_seconds += self.clock() - began

    def flush(self) -> dict[str, float]:
        """The interval's figures by metric name, and a new interval begins; call it after the device was waited for.

        `tps`: tokens/s of one device. `tflops`: 10^12 FLOP/s of one device. `mfu`: percent of the peak, where that is known.
        `memory_gib`: peak memory of the device (on the CPU: of the process, since its start). `time/step_seconds`,
        `time/data_seconds`: mean of a step.
        """
        seconds = self.clock() - self._began - self._paused_seconds
        figures: dict[str, float] = {}
        if self._steps and seconds > 0:
            tps = self._tokens / (seconds * self.ranks_per_row)
            figures["tps"] = tps
            figures["tflops"] = self.flops_per_token * tps / 1e12
            if self.peak_flops is not None:
                figures["mfu"] = 100 * self.flops_per_token * tps / self.peak_flops
            figures["time/step_seconds"] = seconds / self._steps
            figures["time/data_seconds"] = self._data_seconds / self._steps
        figures["memory_gib"] = peak_memory_bytes(self.device) / GIB
        self.start()
        return figures
