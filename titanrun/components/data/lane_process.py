"""Main program of a process that runs lanes of a stream.

It imports no torch, so that it starts fast and needs little memory.
"""

import logging
import os
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, NamedTuple

from titanrun.components.data.lane_runner import LocalLaneRunner
from titanrun.components.data.window_prefetch import WindowPrefetcher
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.data_waits import on_wait
from titanrun.distributed.spec.run_signals import ignore_run_signals


class SeekRequest(NamedTuple):
    """Request to continue at cursors. `generation` numbers these requests."""

    generation: int
    num_rows: int
    cursors: Any
    damaged: Any = ()


class LaneAnswer(NamedTuple):
    """Shares of a global batch since request `generation`, or why there are none.

    `damaged` are the files that are left out up to them, `counts` is what was read since the last
    answer. `problems` are mistakes of a user, `error` is the traceback of any other error.
    """

    generation: int
    shares: Any = None
    damaged: Any = ()
    counts: Any = None
    problems: tuple[Problem, ...] = ()
    error: str | None = None


class LogLine(NamedTuple):
    """Line that a process logs while the rank waits for its answer."""

    level: int
    text: str


class WaitReport(NamedTuple):
    """What a process waits for, None once it goes on."""

    source: str | None


NEXT_BATCH = "next batch"
"""Request for the shares of the next global batch."""


class AnswerSender:
    """Sender of all threads of this process: one message at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, Lock()

    def send(self, message: LaneAnswer | LogLine | WaitReport) -> None:
        """Send a message to the rank."""
        with self._lock:
            self._connection.send(message)


class LogSender(logging.Handler):
    """Handler that sends log lines to the rank at once: it may wait for minutes for an answer."""

    def __init__(self, sender: AnswerSender) -> None:
        super().__init__()
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        self._sender.send(LogLine(record.levelno, record.getMessage()))


def run_lane_process(connection: Connection) -> None:
    """Run lanes, and tell what they log and what they wait for, until the connection closes."""
    sender = AnswerSender(connection)
    logging.basicConfig(handlers=[LogSender(sender)])
    # the libraries of stores log each of their clients
    logging.getLogger("titanrun").setLevel(logging.INFO)
    with on_wait(lambda source: sender.send(WaitReport(source))):
        answer_requests(connection, sender)


def answer_requests(connection: Connection, sender: AnswerSender) -> None:
    """Answer requests until the connection closes."""
    runner: LocalLaneRunner | None = None
    job, lanes, tokenizer = connection.recv()
    generation = 0
    while True:
        request = connection.recv()
        answer = LaneAnswer(generation)
        try:
            if isinstance(request, SeekRequest):
                generation = request.generation
                runner = runner or LocalLaneRunner(job, lanes, tokenizer, WindowPrefetcher())
                runner.seek(request.num_rows, request.cursors, request.damaged)
                continue
            assert runner is not None, "the first request is a SeekRequest"
            shares = runner.next_shares()
            answer = answer._replace(
                shares=shares, damaged=runner.damaged, counts=runner.pop_counts()
            )
        except ProblemsFound as error:
            answer = answer._replace(problems=tuple(error.problems))
        # the rank raises it
        except Exception:
            answer = answer._replace(error=traceback.format_exc())
        sender.send(answer)


def let_rank_finish() -> None:
    """Let the rank go on when this process wakes up on the same core.

    A normal process would take the core for some milliseconds as soon as it is asked for a batch,
    while the rank is still at its own. Where the system allows it, a batch process waits until the
    core is free; its share of the time stays the same.
    """
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Run the lanes that the parent names until it closes the connection.

    The command line holds the descriptor of the connection.
    """
    ignore_run_signals()
    let_rank_finish()
    connection = Connection(int(sys.argv[1]))
    try:
        # modules of plug-ins are found where the parent finds them
        sys.path[:] = connection.recv()
        run_lane_process(connection)
    except (EOFError, OSError):
        os._exit(0)
