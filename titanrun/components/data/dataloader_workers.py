"""Processes that read samples ahead of the step that trains on them."""

import logging
import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.indexed_dataset import SampleIndex
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.spec.run_signals import ignore_run_signals

log = logging.getLogger(__name__)

DEFAULT_PREFETCH_FACTOR = 2
"""Batches that each process reads ahead by default, as in PyTorch's DataLoader."""
MAX_WORKER_DEATHS = 3
WORKER_POLL_SECONDS = 1.0
# a killed process closes its connection before its exit code can be read: much later if the machine
# is busy
JOIN_TIMEOUT_SECONDS = 10.0
FindBatchIndices = Callable[[int], Sequence[SampleIndex] | None]
"""Function that returns the sample indices of the batch at an index, or None after the end."""


class SampleReader(Protocol):
    """Dataset that returns samples by index."""

    def __getitem__(self, index: Any) -> NDArray[Any]: ...


def stack_samples(dataset: SampleReader, indices: Sequence[SampleIndex]) -> NDArray[Any]:
    """Return the samples at `indices`, stacked along a new first dimension."""
    return np.stack([dataset[number] for number in indices])


@dataclass(slots=True)
class WorkerDeaths:
    """Deaths of processes of one kind, of which a run survives MAX_WORKER_DEATHS."""

    kind: str
    count: int = 0

    def record(self, pid: int | None, exit_code: int | None) -> None:
        """Log the death of a process, or raise a data problem if there were too many."""
        how = (
            f"was killed by {signal.Signals(-exit_code).name}"
            if exit_code is not None and exit_code < 0
            else f"ended with code {exit_code}"
        )
        message = f"{self.kind} process {pid} {how}"
        self.count += 1
        if self.count > MAX_WORKER_DEATHS:
            hint = (
                "find out what kills it, most often a lack of memory; "
                "num_workers: 0 reads in the rank itself"
            )
            raise problem_error("data", f"{message}, the {self.count}th that died", hint=hint)
        log.warning("%s; starting a replacement", message)


@dataclass(slots=True)
class WorkerHandle:
    """One process and the indices of the batches requested from it but not received yet."""

    process: BaseProcess
    connection: Connection
    pending_batches: deque[int]


class DataloaderWorkers:
    """Pool of processes that read batches ahead, from any batch index on.

    The content of a batch depends on its index only, never on the processes: a killed process is
    replaced by one that reads the same batches again.

    Args:
        dataset: Samples. Each process gets a copy as of its start.
        find_batch_indices: Returns the sample indices of each batch.
        num_workers: Number of processes.
        prefetch_factor: Batches that each process reads ahead.
    """

    def __init__(
        self,
        dataset: SampleReader,
        find_batch_indices: FindBatchIndices,
        *,
        num_workers: int,
        prefetch_factor: int | None,
    ) -> None:
        self._dataset, self._find_batch_indices = dataset, find_batch_indices
        self._num_workers, self._prefetch_factor = (
            num_workers,
            prefetch_factor or DEFAULT_PREFETCH_FACTOR,
        )
        self._workers: list[WorkerHandle] = []
        self._next_batch = 0
        self._next_request = 0
        self._deaths = WorkerDeaths("data loading")

    def get_batch(self, batch_index: int) -> NDArray[Any]:
        """Return the samples of the batch at `batch_index`.

        Raises:
            ProblemsFound: A data problem if a sample cannot be read or processes die repeatedly.
        """
        if batch_index != self._next_batch or not self._workers:
            self._restart_at(batch_index)
        while (
            self._next_request < batch_index + self._num_workers * self._prefetch_factor
            and self._request_batch(self._next_request)
        ):
            self._next_request += 1
        worker = self._workers[batch_index % self._num_workers]
        answer = self._receive_batch(worker)
        worker.pending_batches.popleft()
        self._next_batch = batch_index + 1
        if isinstance(answer, tuple):
            raise ProblemsFound(answer)
        samples: NDArray[Any] = answer
        return samples

    def close(self) -> None:
        """Stop the processes."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            self._join_worker(worker)
        self._workers = []

    @staticmethod
    def _join_worker(worker: WorkerHandle) -> None:
        """Wait until a process that gets no more requests has ended and its exit code is known."""
        worker.process.join(JOIN_TIMEOUT_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()

    def _restart_at(self, batch_index: int) -> None:
        """Discard the batches that were read ahead and start the processes unless they run."""
        for worker in self._workers:
            while worker.pending_batches:
                self._receive_batch(worker)
                worker.pending_batches.popleft()
        self._next_batch = self._next_request = batch_index
        while len(self._workers) < self._num_workers:
            self._workers.append(self._start_worker())

    def _start_worker(self) -> WorkerHandle:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        others = [worker.connection for worker in self._workers]
        process = context.Process(
            target=run_dataloader_worker,
            args=(theirs, [*others, ours], self._dataset),
            daemon=True,
            name="data loading",
        )
        with warnings.catch_warnings():
            # Python warns about threads, but the child runs no code that takes their locks
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return WorkerHandle(process, ours, deque())

    def _request_batch(self, batch_index: int) -> bool:
        """Request the batch at `batch_index`; return False after the end of the data."""
        numbers = self._find_batch_indices(batch_index)
        if numbers is None:
            return False
        worker = self._workers[batch_index % self._num_workers]
        worker.pending_batches.append(batch_index)
        try:
            worker.connection.send(list(numbers))
        except OSError:
            self._replace_worker(worker)
        return True

    def _receive_batch(self, worker: WorkerHandle) -> Any:
        """Return the next batch of a process."""
        while True:
            try:
                while not worker.connection.poll(WORKER_POLL_SECONDS):
                    if not worker.process.is_alive() and not worker.connection.poll():
                        raise EOFError
                return worker.connection.recv()
            except (EOFError, OSError):
                self._replace_worker(worker)

    def _replace_worker(self, worker: WorkerHandle) -> None:
        """Replace a process that died and request the same batches from the new one."""
        self._join_worker(worker)
        self._deaths.record(worker.process.pid, worker.process.exitcode)
        slot = self._workers.index(worker)
        worker.connection.close()
        self._workers.remove(worker)
        new = self._start_worker()
        worker.process, worker.connection = new.process, new.connection
        self._workers.insert(slot, worker)
        for place in worker.pending_batches:
            worker.connection.send(list(self._find_batch_indices(place) or ()))


def run_dataloader_worker(
    pipe: Connection, inherited_connections: Sequence[Connection], dataset: SampleReader
) -> None:
    """Answer requests for samples until the pipe closes; problems are sent as values.

    Entry point of a worker process.
    """
    for connection in inherited_connections:
        # if held open here, they would hide the end of the requests from this process
        connection.close()
    ignore_run_signals()
    while True:
        try:
            numbers = pipe.recv()
            try:
                answer: Any = stack_samples(dataset, numbers)
            except ProblemsFound as found:
                answer = found.problems
            pipe.send(answer)
        except (EOFError, OSError):
            os._exit(0)
