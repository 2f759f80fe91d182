"""Saves that are written during training.

The tensors are copied first. A thread or a process writes the copy.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.dtensor import is_sharded, to_local

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

    Args:
        is_shared: Whether another process reads it.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.slices: dict[str, BufferSlice] = {}
        self.write_items: dict[str, list[Any]] = {}

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the tensors; when this returns, the originals may change.

        Of a sharded tensor, a shared buffer holds this rank's shard, and `write_items` what to
        write of it. Otherwise, it is all-gathered into its own copy.
        """
        split = {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}
        parts = {name: to_local(tensor) for name, tensor in split.items()} if self.is_shared else {}
        self.write_items = {name: build_write_items(name, split[name]) for name in parts}
        # in their order, which decides the file of each tensor
        plain = {
            name: parts.get(name, tensor)
            for name, tensor in tensors.items()
            if name in parts or name not in split
        }
        self._allocate(plain)
        staged = {name: slot.view(self.buffer) for name, slot in self.slices.items()}
        for name, tensor in plain.items():
            staged[name].copy_(tensor, non_blocking=self.buffer.is_pinned())
        sharded = {
            name: tensor.to("cpu", copy=True) for name, tensor in split.items() if name not in parts
        }
        if self.buffer.is_pinned():
            torch.accelerator.synchronize()
        return {name: (staged | sharded)[name] for name in tensors}

    def _allocate(self, tensors: Mapping[str, Tensor]) -> None:
        slots, end = {}, 0
        for name, tensor in tensors.items():
            slots[name] = BufferSlice(end, tuple(tensor.shape), tensor.dtype)
            end += -(-slots[name].size // ALIGNMENT) * ALIGNMENT
        if slots == self.slices:
            return
        pinned = (
            any(is_accelerator(tensor.device) for tensor in tensors.values()) and not self.is_shared
        )
        self.slices, self.buffer = slots, torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        if self.is_shared:
            self.buffer.share_memory_()


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
        """Copy the tensors and write them in the background; first wait for the previous save."""
        self.wait()
        staged = replace(snapshot, tensors=self._staging_buffer.stage(snapshot.tensors))
        self._pending = self._thread.submit(self._write, staged, on_saved)

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

    def _write(self, snapshot: Snapshot, on_saved: Callable[[], None]) -> None:
        self._save(snapshot)
        on_saved()


def build_write_items(name: str, tensor: Any) -> list[Any]:
    """Return torch's checkpoint write items of a sharded tensor, empty without a shard."""
    is_here = tensor.device_mesh.get_coordinate() is not None
    return tensor.__create_write_items__(name, tensor) if is_here else []
