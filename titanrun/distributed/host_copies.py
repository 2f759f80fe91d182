"""Copies from an accelerator into host memory that the host does not wait for."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.distributed.device import is_accelerator

log = logging.getLogger(__name__)
MEMORY_INFO = Path("/proc/meminfo")
# page-locked memory cannot be swapped: of the rest, the system and the data need some
MAX_PINNED_SHARE = 0.5


def register_host_memory(buffer: Tensor) -> bool:
    """Lock the pages of a buffer for direct copies by the device, and return whether it worked.

    Memory that torch allocates locked is rounded up to a power of two, and cannot be shared with
    another process.
    """
    # torch has no name for it that other accelerators share
    return int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)) == 0


def unregister_host_memory(buffer: Tensor) -> None:
    """Unlock the pages of a buffer. Must be called before its memory is freed."""
    torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())


def get_available_memory_bytes() -> int:
    """Return the host memory that can be used without swapping, in bytes."""
    lines = MEMORY_INFO.read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


@dataclass(slots=True)
class PageLock:
    """Page-locked state of one buffer.

    Args:
        register: locks a buffer's pages and returns whether it worked.
        unregister: unlocks them.
        get_available: returns the available host memory in bytes.
    """

    register: Callable[[Tensor], bool] = register_host_memory
    unregister: Callable[[Tensor], None] = unregister_host_memory
    get_available: Callable[[], int] = get_available_memory_bytes
    _locked: Tensor | None = None
    _has_warned: bool = False

    @property
    def is_locked(self) -> bool:
        """Whether the last buffer is locked."""
        return self._locked is not None

    def lock(self, buffer: Tensor) -> None:
        """Lock a buffer instead of the last one. Warn once if that is not possible."""
        self.release()
        available = self.get_available()
        # the buffer itself may not have been touched yet
        if buffer.nbytes > MAX_PINNED_SHARE * available:
            self._warn(
                f"it needs {buffer.nbytes:,} bytes, more than half of the {available:,} available"
            )
        elif buffer.nbytes and not self.register(buffer):
            self._warn("the driver refused to lock its pages")
        elif buffer.nbytes:
            self._locked = buffer

    def release(self) -> None:
        """Unlock the buffer."""
        locked, self._locked = self._locked, None
        if locked is not None:
            self.unregister(locked)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            log.warning("checkpoints are copied through pageable memory, slowly: %s", reason)
        self._has_warned = True


@dataclass(slots=True)
class HostCopies:
    """Copies of tensors of one accelerator on a stream of their own."""

    _stream: Any = None
    _done: Any = field(default=None)

    def start(self, pairs: Mapping[str, tuple[Tensor, Tensor]], *, is_locked: bool) -> None:
        """Copy each second tensor into the first.

        With page-locked targets, copies from an accelerator are only queued: see `wait`.
        """
        sources = [source for _, source in pairs.values()]
        if not is_locked or not any(is_accelerator(source.device) for source in sources):
            for target, source in pairs.values():
                target.copy_(source)
            return
        if self._stream is None:
            self._stream = torch.Stream(torch.accelerator.current_accelerator())
        self._stream.wait_stream(torch.accelerator.current_stream())
        with self._stream:
            for target, source in pairs.values():
                target.copy_(source, non_blocking=True)
                if is_accelerator(source.device):
                    # temporary tensors must not be reused for others before they are copied
                    source.record_stream(self._stream)
            self._done = self._stream.record_event()

    def wait(self) -> None:
        """Make the host wait until the copies are complete."""
        if self._done is not None:
            self._done.synchronize()

    def wait_on_device(self) -> None:
        """Make the work that is queued on the device from now on wait for the copies."""
        if self._done is not None:
            torch.accelerator.current_stream().wait_event(self._done)
