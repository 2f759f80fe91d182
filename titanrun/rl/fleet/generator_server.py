"""The generator's side of TCP connections: one trainer at a time, and the next after it."""

import json
import logging
import math
import os
import platform
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from titanrun.config.host_port import HostPort
from titanrun.config.json_text import parse_json
from titanrun.rl.fleet.frames import FrameConnection, FrameError
from titanrun.rl.fleet.handshake import RefusedError, welcome_trainer
from titanrun.rl.fleet.rollout_messages import count_done_groups
from titanrun.rl.fleet.weight_frames import WeightAssembly
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreReader

log = logging.getLogger(__name__)

GREETING_SECONDS = 5.0
POLL_SECONDS = 0.2
# what a trainer may ask for. It cannot end a generator, which others may need
ALLOWED = ("load", "generate", "drop")


@dataclass(slots=True)
class TrainerSession:
    """Connection of a trainer. What the generator says before `token` is for an earlier one.

    `is_of_last_run` tells whether that one trained the same run.
    """

    connection: FrameConnection
    title: str
    is_of_last_run: bool
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_current: bool = False


@dataclass(slots=True)
class GeneratorServer:
    """Server of trainers, which come one after the other.

    Args:
        listener: socket that is bound.
        secret: what both prove to have, None for nothing.
        find_difference: returns what a trainer's description of its generation differs in.
        weights: gets the weights of the trainer.
        requests: file of the lines to the generator.
        idle_seconds: longest time without a trainer, None for any.
    """

    listener: socket.socket
    secret: bytes | None
    find_difference: Callable[[Any], str | None]
    weights: ObjectStoreReader
    requests: TextIO
    idle_seconds: float | None = None
    _session: TrainerSession | None = None
    _num_discarded: int = 0
    _last_run: Any = None
    _is_stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Let trainers in until `stop`, or until none has come for long. Then end the generator."""
        idle_since = time.monotonic()
        while not self._is_stopped.is_set():
            if self._session is not None:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > (self.idle_seconds or math.inf):
                log.info("no trainer for %g seconds", self.idle_seconds)
                break
            if select.select([self.listener], [], [], POLL_SECONDS)[0]:
                self._accept()
        self.listener.close()
        self._request({"do": "stop"})

    def stop(self) -> None:
        """End soon. It may be called in a handler of signals."""
        self._is_stopped.set()

    def forward_responses(self, lines: TextIO) -> None:
        """Send each line of the generator to the trainer that it is for, until they end."""
        for line in lines:
            message, session = parse_json(line), self._session
            if session is None or not session.is_current:
                self._num_discarded += count_done_groups(message)
            if session is None:
                continue
            if message.get("hello") == session.token:
                session.is_current = True
                count = self._num_discarded if session.is_of_last_run else 0
                message, self._num_discarded = {"discarded": count}, 0
            if session.is_current or "problem" in message:
                try:
                    session.connection.send(message)
                except OSError as error:
                    log.info("the trainer at %s is gone: %s", session.title, error)
                    session.connection.close()
                    self._num_discarded += count_done_groups(message)

    def _accept(self) -> None:
        """Let the next trainer in."""
        try:
            connected, address = self.listener.accept()
            connection = FrameConnection(connected)
        except OSError as error:
            # it is gone already, or this process has too many files open
            log.warning("a connection failed: %s", error)
            return
        self._welcome(connection, str(HostPort(*address[:2])))

    def _welcome(self, connection: FrameConnection, title: str) -> None:
        """Check a trainer, and start a thread that reads what it sends."""
        try:
            connection.limit_greeting(GREETING_SECONDS)
            welcome_trainer(connection, self.secret)
            hello, _ = connection.receive()
            if self._session is not None:
                connection.send({"busy": True})
                raise RefusedError(f"must wait for that at {self._session.title}", "")
            difference = self.find_difference(hello.get("generation"))
            if difference is not None:
                connection.send({"differs": difference})
                raise RefusedError(f"trains another recipe: {difference}", "")
            connection.send({"pid": os.getpid(), "host": platform.node()})
            connection.trust()
        except (OSError, RefusedError) as error:
            log.warning("the trainer at %s was refused: it %s", title, error)
            connection.close()
            return
        log.info("serving the trainer at %s", title)
        run = hello.get("run")
        self._session = TrainerSession(connection, title, is_of_last_run=run == self._last_run)
        self._last_run = run
        threading.Thread(target=self._read, args=(self._session,), daemon=True).start()

    def _read(self, session: TrainerSession) -> None:
        """Pass on what a trainer sends until its connection ends."""
        hello = {"do": "hello", "token": session.token, "is_of_last_run": session.is_of_last_run}
        self._request(hello)
        assembly = WeightAssembly()
        try:
            while True:
                header, array = session.connection.receive()
                if header.get("do") == "weights":
                    assembly.add(header, array)
                    continue
                if header.get("do") not in ALLOWED:
                    raise FrameError("a message is not known")
                if header["do"] == "load":
                    self.weights.receive(header["key"], [assembly.take()])
                self._request(header)
        except (OSError, KeyError) as error:
            log.info("the trainer at %s is gone: %s", session.title, error)
        session.connection.close()
        self.weights.close()
        self._request({"do": "drop", "is_orphaned": True})
        self._session = None

    def _request(self, message: dict[str, Any]) -> None:
        with self._lock:
            self.requests.write(json.dumps(message) + "\n")
            self.requests.flush()
