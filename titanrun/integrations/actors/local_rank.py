"""Child process of one rank of a local actor, and its messages.

A request is `(number, kind, content)`, where the kind is RENDEZVOUS, START or an endpoint. An
answer is `(number, has_failed, content)`. The content is pickled by itself, so that what cannot be
read fails its own call only.
"""

import logging
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from titanrun.distributed.rank_env import set_variable_default
from titanrun.integrations.actors.endpoint_host import EndpointHost, add_remote_traceback

PICKLE_ERRORS = (pickle.PicklingError, TypeError, AttributeError)
# what a class raises while it is unpickled
UNPICKLE_ERRORS = (*PICKLE_ERRORS, EOFError, ImportError, IndexError, KeyError, ValueError)
# no endpoint has these names
RENDEZVOUS, START = "<rendezvous>", "<start>"


@dataclass(slots=True)
class LocalRank:
    """Loop of the child process: reads requests, and answers them in any order."""

    connection: Connection
    title: str
    rank: int
    host: EndpointHost = field(default_factory=EndpointHost)
    _lock: Lock = field(default_factory=Lock)

    def run(self) -> None:
        """Serve until the parent closes the connection, or ends."""
        while True:
            try:
                number, kind, content = pickle.loads(self.connection.recv_bytes())
            except (EOFError, OSError):
                return
            self._begin(kind, partial(pickle.loads, content)).add_done_callback(
                self._build_answer(number)
            )

    def _begin(self, kind: str, read: Callable[[], Any]) -> Future[Any]:
        if kind == RENDEZVOUS:
            opened: Future[Any] = Future()
            opened.set_result(self.host.open_rendezvous())
            return opened
        return self.host.start(read) if kind == START else self.host.submit(kind, read)

    def _build_answer(self, number: int) -> Callable[[Future[Any]], None]:
        def answer(finished: Future[Any]) -> None:
            error = finished.exception()
            content = (
                pickle_result(finished.result(), self.title)
                if error is None
                else (True, pickle_error(error, self.title, self.rank))
            )
            with self._lock:
                self.connection.send_bytes(pickle.dumps((number, *content)))

        return answer


def pickle_result(result: object, title: str) -> tuple[bool, bytes]:
    """Return whether a result cannot be sent, and what is sent."""
    try:
        return False, pickle.dumps(result)
    except PICKLE_ERRORS as error:
        wrong = TypeError(f"the result of {title} cannot be sent to another process: {error}")
        return True, pickle.dumps(wrong)


def pickle_error(error: BaseException, title: str, rank: int) -> bytes:
    """Pickle an error with its traceback. One that cannot be sent becomes a RuntimeError."""
    add_remote_traceback(error, title, rank)
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
        return content
    except UNPICKLE_ERRORS:
        general = RuntimeError(f"{type(error).__name__}: {error}")
        for note in error.__notes__:
            general.add_note(note)
        return pickle.dumps(general)


def run_local_rank(connection: Connection, title: str, rank: int) -> None:
    """Run the child process of one rank. Ends at once, whatever its endpoints do."""
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {title}[{rank}]: %(message)s")
    # gloo would look up the host name, which fails on many laptops
    set_variable_default("GLOO_SOCKET_IFNAME", "lo")
    LocalRank(connection, title, rank).run()
    logging.shutdown()
    os._exit(0)
