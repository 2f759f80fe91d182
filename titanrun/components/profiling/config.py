"""The profiling section."""

from typing import Self

from pydantic import model_validator

from titanrun.config.base import Config
from titanrun.config.conflict import conflict
from titanrun.config.counted import counted
from titanrun.config.fields import bookkeeping
from titanrun.config.types import NonNegativeInt, PositiveInt, RunPath


class ProfilingConfig(Config):
    """Traces of the profiler and snapshots of the memory allocator."""

    enable_profiling: bool = bookkeeping(False, resume=True)
    """Whether traces are recorded, for TensorBoard's profiler plug-in or Perfetto."""
    save_traces_folder: RunPath = bookkeeping("profile_traces", resume=True)
    """Folder of the traces inside the run directory."""
    profile_freq: PositiveInt = bookkeeping(10, unit="steps", resume=True)
    """Length of a cycle: idle steps, profiler_warmup, profiler_active, and a trace at its end."""
    profiler_active: PositiveInt = bookkeeping(1, unit="steps", resume=True)
    """Steps of a cycle that are recorded."""
    profiler_warmup: NonNegativeInt = bookkeeping(3, unit="steps", resume=True)
    """Steps before them in which the profiler runs and drops what it sees, since its start is slow."""
    enable_memory_snapshot: bool = bookkeeping(False, resume=True)
    """Whether snapshots of the device allocator are recorded, one a cycle and one where memory runs out; CUDA only."""
    save_memory_snapshot_folder: RunPath = bookkeeping("memory_snapshot", resume=True)
    """Folder of the snapshots inside the run directory."""

    @model_validator(mode="after")
    def holds_what_it_records(self) -> Self:
        """A cycle is at least as long as its warmup and its recorded steps together."""
        needed = self.profiler_warmup + self.profiler_active
        if self.profile_freq < needed:
            cycle = counted(self.profile_freq, "step")
            message = f"a cycle of {cycle} cannot hold {self.profiler_warmup} of warmup and {self.profiler_active} recorded"
            raise conflict(
                message,
                "profile_freq",
                "profiler_warmup",
                "profiler_active",
                help=f"set profile_freq to {needed} or more",
            )
        return self
