"""Processes that read rows ahead of the step that trains on them."""

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

from titanrun.components.data.rows import Number
from titanrun.config.problems import ProblemsFound, fail

log = logging.getLogger(__name__)

PREFETCH = 2
"""Batches each process reads ahead where the recipe says nothing, as PyTorch's loader does."""
MOST_DEATHS = 3
WAIT_SECONDS = 1.0
# a killed process closes its connection before its exit code can be read: much later where the machine is busy
END_SECONDS = 10.0
NumbersAt = Callable[[int], Sequence[Number] | None]
"""The numbers of the rows of the batch at a place, or None where there is none."""


class Readable(Protocol):
    """Rows by number."""

    def __getitem__(self, index: Any) -> NDArray[Any]: ...


def stacked(rows: Readable, numbers: Sequence[Number]) -> NDArray[Any]:
    """Rows by their numbers, one below the other."""
    return np.stack([rows[number] for number in numbers])


@dataclass(slots=True)
class Helper:
    """One process, and the places of the batches that it was asked for and has not given yet."""

    process: BaseProcess
    ends: Connection
    asked: deque[int]


class LoaderProcesses:
    """Reads the batches at places 0, 1, 2 ... or from any place on, each in one of several processes, some of them ahead of time.

    What a batch holds depends on its place only, never on the processes: a process that is killed is replaced, and reads the same again.

    Args:
        rows: what is read; each process has them as they are when it starts.
        numbers_at: of the rows of each batch.
        count: of processes.
        ahead: batches each process reads before they are wanted.
    """

    def __init__(
        self, rows: Readable, numbers_at: NumbersAt, *, count: int, ahead: int | None
    ) -> None:
        self._rows, self._numbers_at = rows, numbers_at
        self._count, self._ahead = count, ahead or PREFETCH
        self._helpers: list[Helper] = []
        self._next = 0
        self._asked_to = 0
        self._deaths = 0

    def batch(self, place: int) -> NDArray[Any]:
        """The rows of the batch at `place`. Raises a data problem where one of them cannot be read, or processes die again and again."""
        if place != self._next or not self._helpers:
            self._begin_at(place)
        while self._asked_to < place + self._count * self._ahead and self._ask(self._asked_to):
            self._asked_to += 1
        helper = self._helpers[place % self._count]
        answer = self._answer(helper)
        helper.asked.popleft()
        self._next = place + 1
        if isinstance(answer, tuple):
            raise ProblemsFound(answer)
        rows: NDArray[Any] = answer
        return rows

    def close(self) -> None:
        """End the processes."""
        for helper in self._helpers:
            helper.ends.close()
        for helper in self._helpers:
            self._end(helper)
        self._helpers = []

    @staticmethod
    def _end(helper: Helper) -> None:
        """Wait for the end of a process nobody asks any more; its exit code is known after it."""
        helper.process.join(END_SECONDS)
        if helper.process.is_alive():
            helper.process.kill()
            helper.process.join()

    def _begin_at(self, place: int) -> None:
        """Forget what was read ahead, which belongs to other places; start the processes unless they run."""
        for helper in self._helpers:
            while helper.asked:
                self._answer(helper)
                helper.asked.popleft()
        self._next = self._asked_to = place
        while len(self._helpers) < self._count:
            self._helpers.append(self._started())

    def _started(self) -> Helper:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        others = [helper.ends for helper in self._helpers]
        process = context.Process(
            target=serve,
            args=(theirs, [*others, ours], self._rows),
            daemon=True,
            name="data loading",
        )
        with warnings.catch_warnings():
            # Python warns of threads: the child runs no code that takes their locks
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return Helper(process, ours, deque())

    def _ask(self, place: int) -> bool:
        """Ask for the batch at `place`; False where there is none."""
        numbers = self._numbers_at(place)
        if numbers is None:
            return False
        helper = self._helpers[place % self._count]
        helper.asked.append(place)
        try:
            helper.ends.send(list(numbers))
        except OSError:
            self._replace(helper)
        return True

    def _answer(self, helper: Helper) -> Any:
        """What a process gives next."""
        while True:
            try:
                while not helper.ends.poll(WAIT_SECONDS):
                    if not helper.process.is_alive() and not helper.ends.poll():
                        raise EOFError
                return helper.ends.recv()
            except (EOFError, OSError):
                self._replace(helper)

    def _replace(self, helper: Helper) -> None:
        """Start a process in the place of one that died, and ask it for the same batches."""
        self._end(helper)
        code = helper.process.exitcode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with code {code}"
        )
        message = f"data loading process {helper.process.pid} {how}"
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            help = "look for what kills it: memory, most often; num_workers: 0 reads in the rank itself"
            raise fail("data", f"{message}, the {self._deaths}th that died", help=help)
        log.warning("%s; another one takes its place", message)
        slot = self._helpers.index(helper)
        helper.ends.close()
        self._helpers.remove(helper)
        new = self._started()
        helper.process, helper.ends = new.process, new.ends
        self._helpers.insert(slot, helper)
        for place in helper.asked:
            helper.ends.send(list(self._numbers_at(place) or ()))


def serve(ends: Connection, foreign: Sequence[Connection], rows: Readable) -> None:
    """What a process does: rows for numbers, until nobody asks any more. Problems are given as what they are."""
    for connection in foreign:
        # held open here, they would keep this process from seeing that nobody asks
        connection.close()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        # a signal to all processes of a run is for the ranks, which may want more rows
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            numbers = ends.recv()
            try:
                answer: Any = stacked(rows, numbers)
            except ProblemsFound as found:
                answer = found.problems
            ends.send(answer)
        except (EOFError, OSError):
            os._exit(0)
