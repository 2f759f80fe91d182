"""Snapshots of a device's memory for https://pytorch.org/memory_viz.

They hold every allocation with its Python stack.
"""

import logging
import pickle
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from titanrun.components.profiling.config import ProfilingConfig

# maximum number of recorded allocations and frees; a step of a large model has some ten thousand
MAX_HISTORY_ENTRIES = 100_000
ENDING = "_memory_snapshot.pickle"

log = logging.getLogger(__name__)


def can_record_memory_history(device: torch.device) -> bool:
    """Return whether the allocator of a device can record its history."""
    return device.type != "cpu" and hasattr(
        getattr(torch.get_device_module(device), "memory", None), "_record_memory_history"
    )


class MemorySnapshotWriter:
    """Writer of memory snapshots while entered.

    Writes `iteration_<step>/rank<rank>_memory_snapshot.pickle` each cycle, and
    `iteration_<step>_exit/` if memory runs out.

    Args:
        config: Length of a cycle.
        folder: Folder of the snapshots.
        rank: Rank of this process.
        device: Device for which `can_record_memory_history` is true.
        first_step: Steps completed before.
    """

    def __init__(
        self,
        config: ProfilingConfig,
        folder: Path,
        *,
        rank: int,
        device: torch.device,
        first_step: int,
    ) -> None:
        self.freq, self.folder, self.rank, self.step = config.profile_freq, folder, rank, first_step
        self._memory = torch.get_device_module(device).memory

    def __enter__(self) -> Self:
        self._memory._record_memory_history(max_entries=MAX_HISTORY_ENTRIES)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            self._write(f"iteration_{self.step}_exit")
        self._memory._record_memory_history(enabled=None)

    def on_step_end(self, step: int) -> None:
        """Write a snapshot at the end of a cycle; called after all other work of a step."""
        self.step = step
        if step % self.freq == 0:
            self._write(f"iteration_{step}")

    def _write(self, name: str) -> None:
        """Write one snapshot. Training does not depend on it."""
        path = self.folder / name / f"rank{self.rank}{ENDING}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                pickle.dump(self._memory._build_snapshot(), file)
        except OSError as error:
            log.warning("cannot write the memory snapshot %s, training continues: %s", path, error)
            return
        log.info("memory snapshot of step %d written to %s", self.step, path)
