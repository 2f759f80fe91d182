"""Traces of the profiler for some steps of each cycle.

TensorBoard's plug-in and Perfetto read the files.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, _KinetoProfile

from titanrun.components.profiling.config import ProfilingConfig
from titanrun.config.pluralize import pluralize
from titanrun.distributed.device import synchronize_device

# names of a device's kernels in a trace
ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
# TensorBoard's plug-in reads a folder as a run, and the text before this suffix as one of its
# workers
ENDING = ".pt.trace.json"
# name by which the plug-in finds the steps
STEP = "ProfilerStep#"

log = logging.getLogger(__name__)


class ProfilerTraceWriter:
    """Writer of profiler traces of the last steps of each cycle, while entered.

    Writes `iteration_<step>/rank<rank>.pt.trace.json`. A cycle that started before, or would end
    after the run, is skipped. This class does by hand what torch does by a schedule: with one
    profiler for several cycles, torch warns from the second cycle on, and crashes if the warning is
    an error.

    Args:
        config: Length of the cycle and of its parts.
        folder: Folder of the traces.
        rank: Rank of this process.
        device: Device whose kernels are recorded, in addition to the host.
        first_step: Steps completed before. Cycles are counted from the beginning of the run.
        last_step: Last step of the run.
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
        """Stop the profiler; an interrupted cycle writes no trace."""
        self._stop_profiler()

    def on_step_end(self, step: int) -> None:
        """Write the trace at the end of a cycle; called after all other work of a step."""
        if self._is_recording:
            self._end_step_range()
        if (
            step == self._get_cycle_end(step - 1)
            and (profiler := self._stop_profiler()) is not None
        ):
            self._write(profiler, step)
        self._before_step(step)

    def _before_step(self, done: int) -> None:
        """Start the phase of the cycle that begins after `done` steps."""
        end = self._get_cycle_end(done)
        recorded = end - self.config.profiler_active
        warmed = recorded - self.config.profiler_warmup
        if done == warmed and end <= self.last_step and self._profiler is None:
            self._profiler = _KinetoProfile(
                activities=[ProfilerActivity.CPU, *self._device_activities()],
                record_shapes=True,
                # torch 2.11 warns without it, also of the only cycle
                acc_events=True,
            )
            self._profiler.prepare_trace()
        if done == recorded and self._profiler is not None:
            self._profiler.start_trace()
            self._is_recording = True
        if self._is_recording:
            self._step = record_function(f"{STEP}{done + 1}")
            self._step.__enter__()

    def _end_step_range(self) -> None:
        """End the range of a step in the trace, which includes its kernels."""
        if self._step is not None:
            synchronize_device(self.device)
            self._step.__exit__(None, None, None)
            self._step = None

    def _stop_profiler(self) -> _KinetoProfile | None:
        """Stop the profiler of this cycle; return it if it has recorded something."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        self._end_step_range()
        if not self._is_recording:
            # a prepared profiler must start before it can stop
            profiler.start_trace()
        profiler.stop_trace()
        was_recording, self._is_recording = self._is_recording, False
        return profiler if was_recording else None

    def _get_cycle_end(self, done: int) -> int:
        """Return the last step of the cycle of the step after `done` steps."""
        return done - done % self.config.profile_freq + self.config.profile_freq

    def _device_activities(self) -> list[ProfilerActivity]:
        return [ACTIVITIES[self.device.type]] if self.device.type in ACTIVITIES else []

    def _write(self, profiler: _KinetoProfile, step: int) -> None:
        """Write one trace. Training does not depend on it."""
        path = self.folder / f"iteration_{step}" / f"rank{self.rank}{ENDING}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            log.warning("cannot write the trace %s, training continues: %s", path, error)
            return
        log.info(
            "profiler trace of %s up to step %d written to %s",
            pluralize(self.config.profiler_active, "step"),
            step,
            path,
        )
