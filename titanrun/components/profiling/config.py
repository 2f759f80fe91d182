"""The profiling section."""

from dataclasses import replace
from typing import Self

from pydantic import model_validator

from titanrun.config.base import Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import ReadWhen, bookkeeping
from titanrun.config.pluralize import pluralize
from titanrun.config.types import NonNegativeInt, PositiveInt, RunPath

TRACING = ReadWhen(
    "settings-need-profiling",
    ".enable_profiling",
    "is false",
    "set profiling.enable_profiling: true, or remove it",
    values=(True,),
)
SNAPSHOTS = ReadWhen(
    "settings-need-profiling",
    ".enable_memory_snapshot",
    "is false",
    "set profiling.enable_memory_snapshot: true, or remove it",
    values=(True,),
)


class ProfilingConfig(Config):
    """Traces of the profiler and snapshots of the memory allocator."""

    enable_profiling: bool = bookkeeping(False, resume=True)
    """Whether to record traces, for TensorBoard's profiler plug-in or Perfetto."""
    save_traces_folder: RunPath = bookkeeping("profile_traces", resume=True, read_when=TRACING)
    """Folder of the traces inside the run directory."""
    profile_freq: PositiveInt = bookkeeping(
        10,
        unit="steps",
        resume=True,
        read_when=replace(TRACING, or_enabled="enable_memory_snapshot"),
    )
    """Length of a cycle: idle steps, profiler_warmup, profiler_active, and a trace at its end."""
    profiler_active: PositiveInt = bookkeeping(1, unit="steps", resume=True, read_when=TRACING)
    """Recorded steps of a cycle."""
    profiler_warmup: NonNegativeInt = bookkeeping(3, unit="steps", resume=True, read_when=TRACING)
    """Steps before them in which the profiler runs without recording, since its start is slow."""
    enable_memory_snapshot: bool = bookkeeping(False, resume=True)
    """Whether to record snapshots of the device allocator, one per cycle and one when memory runs
    out. CUDA only."""
    save_memory_snapshot_folder: RunPath = bookkeeping(
        "memory_snapshot", resume=True, read_when=SNAPSHOTS
    )
    """Folder of the snapshots inside the run directory."""

    @model_validator(mode="after")
    def check_cycle_length(self) -> Self:
        """Check that a cycle is at least as long as its warmup and recorded steps together."""
        needed = self.profiler_warmup + self.profiler_active
        if self.profile_freq < needed:
            cycle = pluralize(self.profile_freq, "step")
            message = (
                f"a cycle of {cycle} is too short for {self.profiler_warmup} of warmup "
                f"and {self.profiler_active} recorded"
            )
            raise conflict_error(
                message,
                "profile_freq",
                "profiler_warmup",
                "profiler_active",
                hint=f"set profile_freq to {needed} or more",
            )
        return self
