"""Saves that are written while training goes on: the tensors are copied first, and the copy is written by a thread or a process."""

import ctypes
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from numpy.typing import NDArray
from torch import Tensor

from titanrun.components.checkpoints.checkpoint import Snapshot
from titanrun.components.checkpoints.retention import Retention
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.distributed.agreement import attempt, portable, raise_portable
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.shards import is_split

# every dtype may begin at such an offset
ALIGNMENT = 64
PR_SET_PDEATHSIG = 1


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

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the tensors; when this returns, the originals may change. A sharded tensor has a copy of its own."""
        plain = {name: tensor for name, tensor in tensors.items() if not is_split(tensor)}
        self._make_room(plain)
        staged = {name: slot.view(self.buffer) for name, slot in self.slots.items()}
        for name, tensor in plain.items():
            staged[name].copy_(tensor, non_blocking=self.buffer.is_pinned())
        sharded = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items() if is_split(tensor)}
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
        pinned = any(is_accelerator(tensor.device) for tensor in tensors.values()) and not self.is_shared
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

    def __init__(self, save: Callable[[Snapshot], None], stage: Stage, close_writer: Callable[[], None] = lambda: None) -> None:
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


@dataclass(frozen=True, slots=True)
class Order:
    """A snapshot on its way to the writer: its tensors lie in a shared buffer, which travels once."""

    snapshot: Snapshot
    slots: dict[str, Slot]
    rng: dict[str, NDArray[Any]]
    buffer: Tensor | None


class WriterProcess:
    """A process that saves what lies in shared memory, so that training loses no time to Python's lock. For a run of one rank."""

    def __init__(self, folder: Path, retention: Retention, stage: Stage) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._stage = stage
        self._known: Tensor | None = None
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, folder, retention), name="checkpoint writer", daemon=True)
        self._process.start()
        other.close()

    def save(self, snapshot: Snapshot) -> None:
        """Has a snapshot written whose tensors are those of the stage; returns when it is committed."""
        buffer = None if self._stage.buffer is self._known else self._stage.buffer
        rng = {name: tensor.numpy() for name, tensor in snapshot.rng.items()}
        try:
            self._connection.send(Order(replace(snapshot, tensors={}, rng={}), self._stage.slots, rng, buffer))
            error = self._connection.recv()
        except (EOFError, OSError) as lost:
            raise RuntimeError(f"the process that writes checkpoints ended with {self._process.exitcode}") from lost
        self._known = self._stage.buffer
        raise_portable(error)

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join()


def serve(connection: Connection, folder: Path, retention: Retention) -> None:
    """Saves each order that comes, until nobody can send any more."""
    die_with_parent()
    # a signal to the whole group, as Ctrl-C is one, is the trainer's to answer: it saves, and that takes this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    store, buffer = CheckpointStore(folder=folder, retention=retention), torch.empty(0)
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        buffer = buffer if order.buffer is None else order.buffer
        tensors = {name: slot.view(buffer) for name, slot in order.slots.items()}
        rng = {name: torch.from_numpy(array) for name, array in order.rng.items()}
        snapshot = replace(order.snapshot, tensors=tensors, rng=rng)
        _, error = attempt(lambda snapshot=snapshot: store.save(snapshot))  # type: ignore[misc]
        connection.send(portable(error))


def die_with_parent() -> None:
    """Asks Linux to end this process with the one that started it: a writer left alone could commit into the next start's folder."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
