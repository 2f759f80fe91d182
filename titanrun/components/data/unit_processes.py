"""Processes of this machine that tokenize units of indexes together."""

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from titanrun.components.data.lane_processes import THREADS, check_picklable, join_process
from titanrun.components.data.unit_process import UnitAnswer, UnitTask
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.rank_env import get_environment_variables

log = logging.getLogger(__name__)

# not `-m`: answers would be of classes of `__main__`
ENTRY = "from titanrun.components.data.unit_process import main; main()"


def build_units(tasks: Sequence[UnitTask], tokenizer: Tokenizer, *, num_workers: int) -> None:
    """Tokenize units, in `num_workers` processes or, if it is 1, in this one.

    Raises:
        ProblemsFound: A data problem of a unit, or if a process dies. What is tokenized stays.
    """
    if num_workers == 1:
        for task in tasks:
            task.run(tokenizer)
        return
    check_picklable(tokenizer)
    pool = UnitProcesses(tokenizer, min(num_workers, len(tasks)))
    try:
        pool.run(tasks)
    finally:
        pool.close()


class UnitProcesses:
    """Processes that tokenize one unit at a time each.

    A process ends when its connection closes, also if this process is killed.
    """

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}
        for _ in range(count):
            self._start_worker(tokenizer)

    def run(self, tasks: Sequence[UnitTask]) -> None:
        """Tokenize units, each in the next process that is free."""
        waiting, running = iter(tasks), 0
        for connection in self._workers:
            running += self._send(connection, next(waiting, None))
        while running:
            for ready in wait(list(self._workers)):
                assert isinstance(ready, Connection)
                self._receive(ready)
                running += self._send(ready, next(waiting, None)) - 1

    def close(self) -> None:
        """Stop the processes; one that still tokenizes is killed and leaves no unit behind."""
        for connection, process in self._workers.items():
            connection.close()
            if process.poll() is None:
                process.terminate()
        for process in self._workers.values():
            join_process(process)

    def _start_worker(self, tokenizer: Tokenizer) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**get_environment_variables(), **THREADS},
            )
        connection = Connection(ours.detach())
        self._workers[connection] = process
        with suppress(OSError):
            connection.send(sys.path)
            connection.send((logging.getLogger("titanrun").getEffectiveLevel(), tokenizer))

    def _send(self, connection: Connection, task: UnitTask | None) -> bool:
        """Send a task, and return whether there is one."""
        if task is None:
            return False
        # a process that died is noticed when its answer is read
        with suppress(OSError):
            connection.send(task)
        return True

    def _receive(self, connection: Connection) -> None:
        """Read the end of a task.

        Raises:
            ProblemsFound: A data problem of the unit, or if the process died.
        """
        try:
            answer: UnitAnswer = connection.recv()
        except (EOFError, OSError):
            process = self._workers[connection]
            join_process(process)
            raise dead_process_error(process) from None
        if answer.problems:
            raise ProblemsFound(answer.problems)


def dead_process_error(process: subprocess.Popen[bytes]) -> ProblemsFound:
    """Build the problem of a process that died."""
    code = process.returncode
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    return problem_error(
        "data",
        f"process {process.pid} ended with {how} while it tokenized",
        hint="run the same command again: what is tokenized stays. If memory is short, use fewer "
        "--workers",
    )
