"""The profiling section."""

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping
from titanrun.config.types import PositiveInt, RunPath


class ProfilingConfig(Config):
    """Traces of the profiler and snapshots of the memory allocator."""

    enable_profiling: bool = bookkeeping(False, not_built="profiling")
    """Whether traces are recorded."""
    save_traces_folder: RunPath = bookkeeping("profile_traces", not_built="profiling")
    """Folder of the traces inside the run directory."""
    profile_freq: PositiveInt = bookkeeping(10, unit="steps", not_built="profiling")
    """Length of a profiling cycle."""
    enable_memory_snapshot: bool = bookkeeping(False, not_built="memory snapshots")
    """Whether snapshots of the device allocator are recorded."""
    save_memory_snapshot_folder: RunPath = bookkeeping("memory_snapshot", not_built="memory snapshots")
    """Folder of the snapshots inside the run directory."""
