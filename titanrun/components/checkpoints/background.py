"""Saves that are written while training goes on: the tensors are copied first, and the copy is written by a thread or a process."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.checkpoint import Snapshot
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.shards import is_split, own_part

# every dtype may begin at such an offset
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a staged tensor lies in the buffer."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * int(torch.Size(self.shape).numel())

    def view(self, buffer: Tensor) -> Tensor:
        """The tensor in the buffer."""
        return buffer[self.offset : self.offset + self.size].view(self.dtype).view(self.shape)


class Stage:
    """Host memory that a snapshot's tensors are copied into, all in one buffer that is kept from save to save.

    Args:
        is_shared: whether another process reads it.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.slots: dict[str, Slot] = {}
        self.items: dict[str, list[Any]] = {}

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the tensors; when this returns, the originals may change.

        Of a tensor that ranks share, a shared stage holds this rank's part, and `items` what is to be written of it; else it has a copy
        of its own.
        """
        split = {name: tensor for name, tensor in tensors.items() if is_split(tensor)}
        parts = {name: own_part(tensor) for name, tensor in split.items()} if self.is_shared else {}
        self.items = {name: items_of(name, split[name]) for name in parts}
        # in their own order, which decides what lies in which file
        plain = {
            name: parts.get(name, tensor)
            for name, tensor in tensors.items()
            if name in parts or name not in split
        }
        self._make_room(plain)
        staged = {name: slot.view(self.buffer) for name, slot in self.slots.items()}
        for name, tensor in plain.items():
            staged[name].copy_(tensor, non_blocking=self.buffer.is_pinned())
        sharded = {
            name: tensor.to("cpu", copy=True) for name, tensor in split.items() if name not in parts
        }
        if self.buffer.is_pinned():
            torch.accelerator.synchronize()
        return {name: (staged | sharded)[name] for name in tensors}

    def _make_room(self, tensors: Mapping[str, Tensor]) -> None:
        slots, end = {}, 0
        for name, tensor in tensors.items():
            slots[name] = Slot(end, tuple(tensor.shape), tensor.dtype)
            end += -(-slots[name].size // ALIGNMENT) * ALIGNMENT
        if slots == self.slots:
            return
        pinned = (
            any(is_accelerator(tensor.device) for tensor in tensors.values()) and not self.is_shared
        )
        self.slots, self.buffer = slots, torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        if self.is_shared:
            self.buffer.share_memory_()


class BackgroundSaves:
    """One save at a time beside training.

    Args:
        save: writes a snapshot, and returns when it is committed.
        stage: where the tensors are copied to before.
        close_writer: called at the end.
    """

    def __init__(
        self,
        save: Callable[[Snapshot], None],
        stage: Stage,
        close_writer: Callable[[], None] = lambda: None,
    ) -> None:
        self._save = save
        self._stage = stage
        self._close_writer = close_writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def start(self, snapshot: Snapshot, on_saved: Callable[[], None]) -> None:
        """Copies the tensors, then writes them while the caller goes on; waits first for the save before."""
        self.wait()
        staged = replace(snapshot, tensors=self._stage.fill(snapshot.tensors))
        self._pending = self._thread.submit(self._write, staged, on_saved)

    def check(self) -> None:
        """Raises what went wrong with the save that has ended, if anything did."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Until the save is committed. Raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits for the save and lets go of the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._close_writer()

    def _write(self, snapshot: Snapshot, on_saved: Callable[[], None]) -> None:
        self._save(snapshot)
        on_saved()


def items_of(name: str, tensor: Any) -> list[Any]:
    """What torch's checkpoints write of a tensor that ranks share; nothing where this rank has no part of it."""
    is_here = tensor.device_mesh.get_coordinate() is not None
    return tensor.__create_write_items__(name, tensor) if is_here else []
