"""A process beside each rank that writes its checkpoints from shared memory, so that training loses no time to Python's lock."""

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

from titanrun.components.checkpoints.addresses import Place
from titanrun.components.checkpoints.background import Slot, Stage
from titanrun.components.checkpoints.checkpoint import Snapshot
from titanrun.components.checkpoints.retention import Retention
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.distributed.agreement import Ranks, attempt, portable, raise_portable

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Order:
    """A snapshot on its way to the writer: its tensors lie in a shared buffer, which travels once."""

    snapshot: Snapshot
    slots: dict[str, Slot]
    items: dict[str, list[Any]]
    rng: dict[str, NDArray[Any]]
    buffer: Tensor | None


class Part(Tensor):
    """This rank's part of a tensor, for a process that knows no device mesh: torch's checkpoints write it as they write the tensor."""

    items: list[Any]
    local: Tensor

    @classmethod
    def of(cls, local: Tensor, items: list[Any]) -> "Part":
        """The part that torch writes as `items` say, which name its place in the whole."""
        part = local.as_subclass(cls)
        part.local, part.items = local, items
        return part

    def __create_write_items__(self, name: str, part: object) -> list[Any]:
        """What is to be written."""
        return self.items

    def __get_tensor_shard__(self, index: object) -> Tensor:
        """The values to write."""
        return self.local


class WriterProcess:
    """The writer of one rank. The writers of several ranks save together as the ranks would: the first commits when all have written.

    Args:
        folder: where the checkpoints lie.
        retention: what stays after a save.
        stage: the shared memory.
        meet: called in the process: gives the writers among whom its rank has its place.
    """

    def __init__(
        self, folder: Place, retention: Retention, stage: Stage, meet: Callable[[], Ranks] = Ranks
    ) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._stage = stage
        self._known: Tensor | None = None
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=serve,
            args=(other, folder, retention, meet),
            name="checkpoint writer",
            daemon=True,
        )
        self._process.start()
        other.close()

    def save(self, snapshot: Snapshot) -> None:
        """Has a snapshot written whose tensors are those of the stage; returns when it is committed."""
        buffer = None if self._stage.buffer is self._known else self._stage.buffer
        rng = {name: tensor.numpy() for name, tensor in snapshot.rng.items()}
        try:
            self._connection.send(
                Order(
                    replace(snapshot, tensors={}, rng={}),
                    self._stage.slots,
                    self._stage.items,
                    rng,
                    buffer,
                )
            )
            error = self._connection.recv()
        except (EOFError, OSError) as lost:
            raise RuntimeError(
                f"the process that writes checkpoints ended with {self._process.exitcode}"
            ) from lost
        self._known = self._stage.buffer
        raise_portable(error)

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join()


def serve(
    connection: Connection, folder: Place, retention: Retention, meet: Callable[[], Ranks]
) -> None:
    """Saves each order that comes, until nobody can send any more."""
    die_with_parent()
    # a signal to the whole group, as Ctrl-C is one, is the trainer's to answer: it saves, and that takes this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    store, buffer = (
        CheckpointStore(folder=folder, retention=retention, ranks=meet()),
        torch.empty(0),
    )
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        buffer = buffer if order.buffer is None else order.buffer
        staged = {name: slot.view(buffer) for name, slot in order.slots.items()}
        tensors = {
            name: Part.of(tensor, order.items[name]) if name in order.items else tensor
            for name, tensor in staged.items()
        }
        rng = {name: torch.from_numpy(array) for name, array in order.rng.items()}
        snapshot = replace(order.snapshot, tensors=tensors, rng=rng)
        _, error = attempt(lambda snapshot=snapshot: store.save(snapshot))  # type: ignore[misc]
        connection.send(portable(error))


def die_with_parent() -> None:
    """Asks Linux to end this process with the one that started it: a writer left alone could commit into the next start's folder."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
