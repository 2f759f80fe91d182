"""Processes that run the lanes of a rank ahead of the steps that train on them."""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from queue import Empty, SimpleQueue
from threading import Thread

from titanrun.components.data.damaged_files import DamagedRecords, join_damaged
from titanrun.components.data.dataloader_workers import (
    DEFAULT_PREFETCH_FACTOR,
    JOIN_TIMEOUT_SECONDS,
    WORKER_POLL_SECONDS,
    WorkerDeaths,
)
from titanrun.components.data.lane_process import (
    NEXT_BATCH,
    LaneAnswer,
    LogLine,
    SeekRequest,
    WaitReport,
)
from titanrun.components.data.lane_rows import LaneCursor
from titanrun.components.data.lane_runner import LaneCursors, LaneJob, LaneShare
from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.data_waits import check_stop, report_wait
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.distributed.rank_env import get_environment_variables

log = logging.getLogger(__name__)

# not `-m`: answers would be of classes of `__main__`
ENTRY = "from titanrun.components.data.lane_process import main; main()"
# the processes of a node share its cores: threads of each would only compete
THREADS = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
# any thread reads the next window of any lane: with an arena each they keep freed memory
MEMORY = {"MALLOC_ARENA_MAX": "1"}
CLOSE_SECONDS = 2.0
"""Time for all processes to end. One that waits for a server does not know that it shall end, and
has nothing to lose."""


class WorkerLink:
    """Connection with a process, whose answers a thread receives as they come.

    An answer is larger than what a connection holds. Without the thread, the process would wait in
    the middle of it until the rank needs the batch, and the rank would then wait for the process.
    """

    def __init__(self, ours: socket.socket) -> None:
        self._socket, self._connection = ours, Connection(os.dup(ours.fileno()))
        self._answers: SimpleQueue[LaneAnswer | LogLine | WaitReport | None] = SimpleQueue()
        self._thread = Thread(target=self._receive, name="answers of a stream", daemon=True)
        self._thread.start()

    @property
    def num_answers(self) -> int:
        """Number of answers that have arrived and wait."""
        return self._answers.qsize()

    def send(self, request: object) -> None:
        """Send a request."""
        self._connection.send(request)

    def get(self, seconds: float) -> LaneAnswer | LogLine | WaitReport | None:
        """Return the next answer, None after the end of the connection.

        Raises:
            Empty: If none comes for some seconds.
        """
        return self._answers.get(timeout=seconds)

    def close(self) -> None:
        """End the connection, on both sides."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        self._socket.close()

    def _receive(self) -> None:
        """Receive answers until the connection ends."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._answers.put(self._connection.recv())
        finally:
            self._answers.put(None)


@dataclass(slots=True)
class LaneProcess:
    """One process, its lanes, and what it has delivered.

    `num_requested` counts the batches that it was asked for and has not delivered.
    """

    process: subprocess.Popen[bytes]
    connection: WorkerLink
    lanes: tuple[int, ...]
    num_requested: int = 0
    num_rows: int = 0
    cursors: dict[int, Sequence[LaneCursor]] = field(default_factory=dict)


class LaneProcesses:
    """Lanes of a rank, run by several processes: the k-th lane by process k modulo their number.

    What a process reads ahead has no effect before it is delivered: one that is killed is replaced
    by one that begins after the last batch that it delivered.

    Args:
        job: Streams and lanes.
        lanes: Lanes of the rank.
        tokenizer: Tokenizer, which must be picklable.
        num_workers: Number of processes.
        prefetch_factor: Batches that each process reads ahead.
    """

    def __init__(
        self,
        job: LaneJob,
        lanes: Sequence[int],
        tokenizer: Tokenizer,
        *,
        num_workers: int,
        prefetch_factor: int | None = None,
    ) -> None:
        count = min(num_workers, len(lanes))
        check_picklable(tokenizer)
        self._job, self._tokenizer = job, tokenizer
        self._shares = [tuple(lanes[number::count]) for number in range(count)]
        self._prefetch_factor = prefetch_factor or DEFAULT_PREFETCH_FACTOR
        self._workers: list[LaneProcess] = []
        self._generation, self._deaths = 0, WorkerDeaths("tokenization")
        self._position: tuple[int, LaneCursors] = (0, {})
        self._damaged: Sequence[DamagedRecords] = ()
        self._counts = ReadCounts()

    @property
    def damaged(self) -> Sequence[DamagedRecords]:
        """Damaged files of each stream that are left out."""
        return self._damaged or [{} for _ in self._job.sources]

    def seek(
        self, num_rows: int, cursors: LaneCursors, damaged: Sequence[DamagedRecords] = ()
    ) -> None:
        """Continue at these cursors, after `num_rows` sequences of each lane."""
        self._position, self._damaged = (num_rows, cursors), damaged
        self._generation += 1
        for worker in self._workers:
            self._seek_worker(worker)

    def next_shares(self) -> dict[int, LaneShare]:
        """Return the shares of the lanes in the next global batch.

        Raises:
            ProblemsFound: A data problem of a process, or if processes die repeatedly.
        """
        while len(self._workers) < len(self._shares):
            worker = self._start_worker(self._shares[len(self._workers)])
            self._workers.append(worker)
            self._seek_worker(worker)
        for worker in self._workers:
            self._request_ahead(worker)
        shares: dict[int, LaneShare] = {}
        for worker in self._workers:
            shares |= self._receive_shares(worker)
        # a process that is asked wakes up: not before the rank has its batch, and not a step later
        for worker in self._workers:
            self._request_ahead(worker)
        return {lane: shares[lane] for lane in sorted(shares)}

    def pop_counts(self) -> ReadCounts:
        """Return what was read since the last call, for the batches that were delivered."""
        return self._counts.pop()

    def close(self) -> None:
        """Stop the processes."""
        for worker in self._workers:
            worker.connection.close()
        end = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            join_process(worker.process, max(0.0, end - time.monotonic()))
        self._workers = []

    def _start_worker(self, lanes: tuple[int, ...]) -> LaneProcess:
        """Start a process, which waits for the first request."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**get_environment_variables(), **THREADS, **MEMORY},
            )
        worker = LaneProcess(process, WorkerLink(ours), lanes)
        # of one that has died already, the end of the connection is received
        with suppress(OSError):
            worker.connection.send(sys.path)
            worker.connection.send((self._job, lanes, self._tokenizer))
        return worker

    def _seek_worker(self, worker: LaneProcess) -> None:
        """Let a process continue at the last position that was asked for."""
        num_rows, cursors = self._position
        worker.num_rows, worker.num_requested = num_rows, 0
        worker.cursors = {lane: cursors[lane] for lane in worker.lanes}
        request = SeekRequest(self._generation, num_rows, worker.cursors, self.damaged)
        self._send(worker, request)

    def _request_ahead(self, worker: LaneProcess) -> None:
        """Ask for as many batches as a process reads ahead."""
        while worker.num_requested < self._prefetch_factor:
            worker.num_requested += 1
            self._send(worker, NEXT_BATCH)

    def _send(self, worker: LaneProcess, request: object) -> None:
        try:
            worker.connection.send(request)
        except OSError:
            self._replace_worker(worker)

    def _receive_shares(self, worker: LaneProcess) -> dict[int, LaneShare]:
        """Return the next shares of a process."""
        answer = self._receive(worker)
        while answer.generation != self._generation:
            answer = self._receive(worker)
        if answer.error is not None:
            raise RuntimeError(f"in a process that tokenizes a stream: {answer.error}")
        if answer.problems:
            raise ProblemsFound(answer.problems)
        shares: dict[int, LaneShare] = answer.shares
        self._damaged = join_damaged([self.damaged, answer.damaged])
        self._counts.add(answer.counts)
        worker.num_requested -= 1
        worker.num_rows += self._job.rows_per_step
        worker.cursors = {lane: share.cursors for lane, share in shares.items()}
        return shares

    def _receive(self, worker: LaneProcess) -> LaneAnswer:
        """Return the next answer of a process, and log what it logs until then."""
        while True:
            try:
                answer = worker.connection.get(WORKER_POLL_SECONDS)
            except Empty:
                check_stop()
                send_heartbeat()
                continue
            if isinstance(answer, LaneAnswer):
                return answer
            # many lanes may report their waits more often than each second
            check_stop()
            if answer is None:
                self._replace_worker(worker)
            elif isinstance(answer, WaitReport):
                report_wait(answer.source)
            else:
                log.log(answer.level, "%s", answer.text)

    def _replace_worker(self, worker: LaneProcess) -> None:
        """Replace a process that died by one that begins after its last batch."""
        worker.connection.close()
        join_process(worker.process)
        self._deaths.record(worker.process.pid, worker.process.returncode)
        new = self._start_worker(worker.lanes)
        worker.process, worker.connection = new.process, new.connection
        worker.num_requested = 0
        request = SeekRequest(self._generation, worker.num_rows, worker.cursors, self.damaged)
        self._send(worker, request)
        self._request_ahead(worker)


def check_picklable(tokenizer: Tokenizer) -> None:
    """Raise a data problem if the tokenizer cannot be sent to another process."""
    try:
        ForkingPickler.dumps(tokenizer)
    except (PicklingError, TypeError, AttributeError) as error:
        raise problem_error(
            "data",
            f"the tokenizer cannot be sent to other processes: {error}",
            hint="set training.dataloader.num_workers: 0",
        ) from error


def join_process(process: subprocess.Popen[bytes], seconds: float = JOIN_TIMEOUT_SECONDS) -> None:
    """Wait for the end of a process whose connection is closed, and kill it if it goes on."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
