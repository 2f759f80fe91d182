"""Traces of the profiler: what ran in some steps of each cycle, as files that TensorBoard's plug-in and Perfetto read."""

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, _KinetoProfile

from titanrun.components.profiling.config import ProfilingConfig
from titanrun.distributed.device import wait_for

# what a device's kernels are called in a trace
ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
# TensorBoard's plug-in takes a folder for a run, and the text before this ending for one of its workers
ENDING = ".pt.trace.json"
# by this name it finds the steps
STEP = "ProfilerStep#"

log = logging.getLogger(__name__)


class Traces:
    """While entered, records the last steps of each cycle, as `iteration_<step>/rank<rank>.pt.trace.json`.

    A cycle that began before, or would end after the run, is left out. It does by hand what torch does by a schedule, which goes on with
    one profiler: that warns from its second cycle on, and crashes where the warning is an error.

    Args:
        config: length of the cycle and of its parts.
        folder: where the traces go.
        rank: this process.
        device: whose kernels are recorded, beside what the host does.
        first_step: steps done before; cycles are counted from the beginning of the run.
        last_step: of the run.
    """

    def __init__(
        self,
        config: ProfilingConfig,
        folder: Path,
        *,
        rank: int,
        device: torch.device,
        first_step: int,
        last_step: int,
    ) -> None:
        self.config, self.folder, self.rank, self.device = config, folder, rank, device
        self.first_step, self.last_step = first_step, last_step
        self._profiler: _KinetoProfile | None = None
        self._is_recording = False
        self._step: record_function | None = None

    def __enter__(self) -> Self:
        self._before_step(self.first_step)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A cycle that is broken off leaves no trace."""
        self._end()

    def after_step(self, step: int) -> None:
        """A step, and all that was due after it, is done."""
        if self._is_recording:
            self._close_step()
        if step == self._end_of_cycle(step - 1) and (profiler := self._end()) is not None:
            self._write(profiler, step)
        self._before_step(step)

    def _before_step(self, done: int) -> None:
        """Starts what the step after `done` others begins."""
        end = self._end_of_cycle(done)
        recorded = end - self.config.profiler_active
        warmed = recorded - self.config.profiler_warmup
        if done == warmed and end <= self.last_step and self._profiler is None:
            self._profiler = _KinetoProfile(
                activities=[ProfilerActivity.CPU, *self._device_activities()], record_shapes=True
            )
            self._profiler.prepare_trace()
        if done == recorded and self._profiler is not None:
            self._profiler.start_trace()
            self._is_recording = True
        if self._is_recording:
            self._step = record_function(f"{STEP}{done + 1}")
            self._step.__enter__()

    def _close_step(self) -> None:
        """Ends what a step is called in the trace; its kernels are part of it."""
        if self._step is not None:
            wait_for(self.device)
            self._step.__exit__(None, None, None)
            self._step = None

    def _end(self) -> _KinetoProfile | None:
        """Stops the profiler of this cycle; gives it where it has recorded something."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        self._close_step()
        if not self._is_recording:
            # one that is prepared must start before it may stop
            profiler.start_trace()
        profiler.stop_trace()
        was_recording, self._is_recording = self._is_recording, False
        return profiler if was_recording else None

    def _end_of_cycle(self, done: int) -> int:
        """The last step of the cycle in which the step after `done` others lies."""
        return done - done % self.config.profile_freq + self.config.profile_freq

    def _device_activities(self) -> list[ProfilerActivity]:
        return [ACTIVITIES[self.device.type]] if self.device.type in ACTIVITIES else []

    def _write(self, profiler: _KinetoProfile, step: int) -> None:
        """One trace. Training does not depend on it."""
        path = self.folder / f"iteration_{step}" / f"rank{self.rank}{ENDING}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            log.warning("cannot write the trace %s, training goes on: %s", path, error)
            return
        log.info(
            "the profiler's trace of the %d steps up to %d is in %s",
            self.config.profiler_active,
            step,
            path,
        )
