"""Saves that are written during training.

The tensors are copied first. A thread or a process writes the copy.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.dtensor import is_sharded, to_local
from titanrun.distributed.host_copies import HostCopies, PageLock

# valid offset for every dtype
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Position of a staged tensor in the buffer."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Size of the tensor in bytes."""
        return self.dtype.itemsize * int(torch.Size(self.shape).numel())

    def view(self, buffer: Tensor) -> Tensor:
        """Return the tensor in the buffer."""
        return buffer[self.offset : self.offset + self.size].view(self.dtype).view(self.shape)


class StagingBuffer:
    """Host memory for the tensors of a snapshot, one buffer that is kept between saves.

    Its pages are locked if the tensors are on an accelerator, so that copies are queued there and
    training goes on.

    Args:
        is_shared: Whether another process reads it.
        page_lock: Locks the buffer's pages.
        needs_lock: Returns whether copies of the tensors gain from locked pages.
    """

    def __init__(
        self,
        *,
        is_shared: bool = False,
        page_lock: PageLock | None = None,
        needs_lock: Callable[[Iterable[Tensor]], bool] | None = None,
    ) -> None:
        self.is_shared = is_shared
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.slices: dict[str, BufferSlice] = {}
        self.write_items: dict[str, list[Any]] = {}
        self.copies = HostCopies()
        self._page_lock = page_lock or PageLock()
        self._needs_lock = needs_lock or are_on_accelerator

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the tensors, or queue copies on the device.

        The copies must not be read before `copies.wait()`, and the originals not be written to on
        the device before `copies.wait_on_device()`.

        Of a sharded tensor, the buffer holds this rank's shard. For another process it is returned
        alone, and `write_items` are what to write of it.
        """
        split = {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}
        self.write_items = (
            {name: build_write_items(name, tensor) for name, tensor in split.items()}
            if self.is_shared
            else {}
        )
        # in their order, which decides the file of each tensor
        parts = {name: to_local(tensor) for name, tensor in tensors.items()}
        self._allocate(parts)
        staged = {name: slot.view(self.buffer) for name, slot in self.slices.items()}
        self.copies.start(
            {name: (staged[name], part) for name, part in parts.items()},
            is_locked=self._page_lock.is_locked,
        )
        if self.is_shared:
            return staged
        return {
            name: replace_local(split[name], part) if name in split else part
            for name, part in staged.items()
        }

    def close(self) -> None:
        """Unlock the buffer's pages."""
        self._page_lock.release()

    def _allocate(self, tensors: Mapping[str, Tensor]) -> None:
        slots, end = {}, 0
        for name, tensor in tensors.items():
            slots[name] = BufferSlice(end, tuple(tensor.shape), tensor.dtype)
            end += -(-slots[name].size // ALIGNMENT) * ALIGNMENT
        if slots == self.slices:
            return
        self._page_lock.release()
        self.slices, self.buffer = slots, torch.empty(end, dtype=torch.uint8)
        if self.is_shared:
            self.buffer.share_memory_()
        if self._needs_lock(tensors.values()):
            self._page_lock.lock(self.buffer)


def are_on_accelerator(tensors: Iterable[Tensor]) -> bool:
    """Return whether some of the tensors are on an accelerator."""
    return any(is_accelerator(tensor.device) for tensor in tensors)


def replace_local(tensor: Any, part: Tensor) -> Tensor:
    """Return the sharded tensor with another local part, which may be on another device."""
    replaced: Tensor = type(tensor)(part, tensor._spec, requires_grad=False)
    return replaced


class AsyncSaver:
    """Saver that runs one save at a time during training.

    Args:
        save: Writes a snapshot and returns when it is committed.
        staging_buffer: Memory that the tensors are copied to first.
        close_writer: Called at the end.
    """

    def __init__(
        self,
        save: Callable[[Snapshot], None],
        staging_buffer: StagingBuffer,
        close_writer: Callable[[], None] = lambda: None,
    ) -> None:
        self._save = save
        self._staging_buffer = staging_buffer
        self._close_writer = close_writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def start_save(self, snapshot: Snapshot, on_saved: Callable[[], None]) -> None:
        """Copy the tensors and write them in the background; first wait for the previous save.

        On an accelerator the copies are only queued: see `wait_for_copies_on_device`.
        """
        self.wait()
        staged = replace(snapshot, tensors=self._staging_buffer.stage(snapshot.tensors))
        self._pending = self._thread.submit(self._write, staged, on_saved)

    def wait_for_copies_on_device(self) -> None:
        """Make what is queued on the device from now on wait for the copies of the last save."""
        self._staging_buffer.copies.wait_on_device()

    def raise_if_failed(self) -> None:
        """Raise the error of the last save if it has ended with one."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the save is committed. Raise its error, if any."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the save and stop the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._close_writer()
            self._staging_buffer.close()

    def _write(self, snapshot: Snapshot, on_saved: Callable[[], None]) -> None:
        self._staging_buffer.copies.wait()
        self._save(snapshot)
        on_saved()


def build_write_items(name: str, tensor: Any) -> list[Any]:
    """Return torch's checkpoint write items of a sharded tensor, empty without a shard."""
    is_here = tensor.device_mesh.get_coordinate() is not None
    return tensor.__create_write_items__(name, tensor) if is_here else []
