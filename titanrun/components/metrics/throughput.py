"""Throughput of the run: tokens and FLOP per second, data loading time, peak memory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from titanrun.distributed.device import get_peak_memory_bytes, reset_peak_memory, synchronize_device

GIB = 2**30


class Throughput:
    """Measurement of the intervals between logged lines, without validation and checkpoints.

    Args:
        flops_per_token: FLOP of a forward and backward pass of the model per token.
        peak_flops: The device's FLOP/s. None if unknown, which disables MFU.
        device: Device whose memory is measured.
        ranks_per_sequence: Ranks that work on the same tokens (tensor, context and pipeline
            parallel).
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        flops_per_token: float,
        peak_flops: float | None,
        device: torch.device,
        ranks_per_sequence: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.device = device
        self.ranks_per_sequence = ranks_per_sequence
        self.clock = clock
        self.start_interval()

    def start_interval(self) -> None:
        """Start an interval now, as right before the first step."""
        self._began = self.clock()
        self._steps = 0
        self._tokens = 0
        self._data_seconds = 0.0
        self._paused_seconds = 0.0
        reset_peak_memory(self.device)

    def count_step(self, tokens: int) -> None:
        """Count one completed optimizer step that consumed `tokens` on this rank."""
        self._steps += 1
        self._tokens += tokens

    @contextmanager
    def time_data_loading(self) -> Iterator[None]:
        """Count the time of the block as data loading."""
        began = self.clock()
        try:
            yield
        finally:
            self._data_seconds += self.clock() - began

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of the block from the interval.

        Waits for the device at both ends, so that asynchronous work counts in the right interval.
        """
        synchronize_device(self.device)
        began = self.clock()
        try:
            yield
        finally:
            synchronize_device(self.device)
            self._paused_seconds += self.clock() - began

    def flush(self) -> dict[str, float]:
        """Return the interval's metrics by name and start a new interval.

        Call it after waiting for the device. `tps`: tokens/s per device. `tflops`: 10^12 FLOP/s per
        device. `mfu`: percent of the peak, if known. `memory_gib`: peak memory of the device (on
        the CPU: of the process, since its start). `time/step_seconds`, `time/data_seconds`: mean
        per step.
        """
        seconds = self.clock() - self._began - self._paused_seconds
        figures: dict[str, float] = {}
        if self._steps and seconds > 0:
            tps = self._tokens / (seconds * self.ranks_per_sequence)
            figures["tps"] = tps
            figures["tflops"] = self.flops_per_token * tps / 1e12
            if self.peak_flops is not None:
                figures["mfu"] = 100 * self.flops_per_token * tps / self.peak_flops
            figures["time/step_seconds"] = seconds / self._steps
            figures["time/data_seconds"] = self._data_seconds / self._steps
        figures["memory_gib"] = get_peak_memory_bytes(self.device) / GIB
        self.start_interval()
        return figures
