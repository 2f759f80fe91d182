"""Snapshots of a device's memory: every allocation with the Python stack that asked for it, for https://pytorch.org/memory_viz."""

import logging
import pickle
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from titanrun.components.profiling.config import ProfilingConfig

# allocations and frees that are remembered; a step of a large model has some ten thousand
HISTORY = 100_000
ENDING = "_memory_snapshot.pickle"

log = logging.getLogger(__name__)


def has_history(device: torch.device) -> bool:
    """Whether the allocator of a device can remember what it did."""
    return device.type != "cpu" and hasattr(
        getattr(torch.get_device_module(device), "memory", None), "_record_memory_history"
    )


class MemorySnapshots:
    """While entered, writes `iteration_<step>/rank<rank>_memory_snapshot.pickle` each cycle, and `iteration_<step>_exit/` where memory
    runs out.

    Args:
        config: length of a cycle.
        folder: where they go.
        rank: this process.
        device: one that `has_history`.
        first_step: steps done before.
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
        self._memory._record_memory_history(max_entries=HISTORY)
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

    def after_step(self, step: int) -> None:
        """A step, and all that was due after it, is done."""
        self.step = step
        if step % self.freq == 0:
            self._write(f"iteration_{step}")

    def _write(self, name: str) -> None:
        """One snapshot. Training does not depend on it."""
        path = self.folder / name / f"rank{self.rank}{ENDING}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                pickle.dump(self._memory._snapshot(), file)
        except OSError as error:
            log.warning("cannot write the memory snapshot %s, training goes on: %s", path, error)
            return
        log.info("what lay in the device's memory after step %d is in %s", self.step, path)
