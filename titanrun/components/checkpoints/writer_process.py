"""Process of each rank that writes its checkpoints from shared memory.

So training does not wait for Python's GIL.
"""

import ctypes
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
from numpy.typing import NDArray
from torch import Tensor

from titanrun.components.checkpoints.async_save import BufferSlice, StagingBuffer
from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.metrics.spec.console_stream import protect_stderr, protect_stdout
from titanrun.distributed.object_collectives import (
    RankGroup,
    call_and_catch,
    raise_serialized_error,
    serialize_error,
)
from titanrun.distributed.spec.run_signals import ignore_run_signals

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Snapshot for the writer; its tensors are in a shared buffer, which is sent once."""

    snapshot: Snapshot
    slices: dict[str, BufferSlice]
    write_items: dict[str, list[Any]]
    rng: dict[str, NDArray[Any]]
    buffer: Tensor | None


class LocalShard(Tensor):
    """This rank's shard of a tensor, for a process without a device mesh.

    torch's checkpoints write it as they write the tensor.
    """

    write_items: list[Any]
    local: Tensor

    @classmethod
    def from_local(cls, local: Tensor, write_items: list[Any]) -> "LocalShard":
        """Return the shard that torch writes as `write_items`, which name its offsets, specify."""
        part = local.as_subclass(cls)
        part.local, part.write_items = local, write_items
        return part

    def __create_write_items__(self, name: str, part: object) -> list[Any]:
        """Return the write items."""
        return self.write_items

    def __get_tensor_shard__(self, index: object) -> Tensor:
        """Return the values to write."""
        return self.local


class WriterProcess:
    """Checkpoint writer of one rank.

    The writers of several ranks save together as the ranks would: the writer of the main rank
    commits when all have written.

    Args:
        folder: Folder of the checkpoints.
        retention: Which checkpoints to keep after a save.
        staging_buffer: Shared memory.
        join_writers: Called in the process; returns the group of writers.
    """

    def __init__(
        self,
        folder: AnyPath,
        retention: RetentionPolicy,
        staging_buffer: StagingBuffer,
        join_writers: Callable[[], RankGroup] = RankGroup,
    ) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._staging_buffer = staging_buffer
        self._sent_buffer: Tensor | None = None
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=run_checkpoint_writer,
            args=(other, folder, retention, join_writers),
            name="checkpoint writer",
            daemon=True,
        )
        self._process.start()
        other.close()

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot whose tensors are in the staging buffer; return when it is committed."""
        buffer = (
            None
            if self._staging_buffer.buffer is self._sent_buffer
            else self._staging_buffer.buffer
        )
        rng = {name: tensor.numpy() for name, tensor in snapshot.rng.items()}
        try:
            self._connection.send(
                SaveRequest(
                    replace(snapshot, tensors={}, rng={}),
                    self._staging_buffer.slices,
                    self._staging_buffer.write_items,
                    rng,
                    buffer,
                )
            )
            error = self._connection.recv()
        except (EOFError, OSError) as lost:
            raise RuntimeError(
                f"the process that writes checkpoints ended with {self._process.exitcode}"
            ) from lost
        self._sent_buffer = self._staging_buffer.buffer
        raise_serialized_error(error)

    def close(self) -> None:
        """Stop the process."""
        self._connection.close()
        self._process.join()


def run_checkpoint_writer(
    connection: Connection,
    folder: AnyPath,
    retention: RetentionPolicy,
    join_writers: Callable[[], RankGroup],
) -> None:
    """Save the requested snapshots until the connection closes.

    Entry point of the process.
    """
    die_with_parent()
    ignore_run_signals()
    protect_stdout()
    protect_stderr()
    store, buffer = (
        CheckpointStore(folder=folder, retention=retention, ranks=join_writers()),
        torch.empty(0),
    )
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        buffer = buffer if request.buffer is None else request.buffer
        staged = {name: slot.view(buffer) for name, slot in request.slices.items()}
        tensors = {
            name: LocalShard.from_local(tensor, request.write_items[name])
            if name in request.write_items
            else tensor
            for name, tensor in staged.items()
        }
        rng = {name: torch.from_numpy(array) for name, array in request.rng.items()}
        snapshot = replace(request.snapshot, tensors=tensors, rng=rng)
        _, error = call_and_catch(lambda snapshot=snapshot: store.save(snapshot))  # type: ignore[misc]
        connection.send(serialize_error(error))


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies.

    A writer that outlives it could commit into the folder of the next start.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
