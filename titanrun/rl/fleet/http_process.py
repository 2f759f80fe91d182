"""Process of a fleet that somebody else has started: `RolloutProcess`'s messages over TCP."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from titanrun.config.host_port import HostPort
from titanrun.rl.fleet.fleet_process import FleetProcess, OnExit, OnMessage
from titanrun.rl.fleet.frames import FrameConnection
from titanrun.rl.fleet.handshake import RefusedError, greet_generator
from titanrun.rl.fleet.outbox import Outbox
from titanrun.rl.fleet.weight_frames import Bucket, iter_weight_frames

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
# between two attempts to connect: at first, and at most
FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0


@dataclass(slots=True)
class GeneratorLink:
    """One start of a process: attempts to connect, then a connection, then its end."""

    outbox: Outbox = field(default_factory=Outbox)
    connection: FrameConnection | None = None
    is_admitted: bool = False
    has_ended: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """End the connection, or the attempts."""
        self.has_ended.set()
        self.outbox.close()
        if self.connection is not None:
            self.connection.close()


@dataclass(slots=True, kw_only=True)
class HttpProcess(FleetProcess):
    """Generator that waits for a trainer at a host and port, and outlives it.

    It lives while it is connected; a start is an attempt to connect that is repeated until it
    succeeds. `log_file` has what the attempts say.

    Args:
        place: where it listens.
        secret: what both prove to have, None for nothing.
        description: what it must generate with, as `describe_generation` says.
        run: what tells this run from others, whose groups do not concern it.
        find_weights: returns the tensors of published weights.

    Attributes:
        pid: its process id on its machine, None before it is known.
    """

    place: HostPort
    secret: bytes | None
    description: Mapping[str, Any]
    run: str
    find_weights: Callable[[int], Sequence[Bucket]]
    pid: int | None = None
    _link: GeneratorLink | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it is connected, and the fleet knows."""
        link = self._link
        return link is not None and link.is_admitted and not link.has_ended.is_set()

    @property
    def may_return(self) -> bool:
        """Whether it runs, or may run again."""
        is_trying = self._link is not None and not self._link.has_ended.is_set()
        return is_trying or self.starts_left > 0

    def admit(self) -> None:
        """Count as alive from now on."""
        if self._link is not None:
            self._link.is_admitted = True

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message. One that is not alive gets nothing: the fleet knows when it is."""
        if self.is_alive:
            assert self._link is not None
            self._link.outbox.put(message)

    def kill(self) -> None:
        """End the connection. The generator drops what it has under way, and waits."""
        if self._link is not None:
            self._link.close()

    def close(self) -> None:
        """End the connection."""
        self.kill()
        self._link = None

    def _open(self) -> Callable[[int, OnMessage, OnExit], None]:
        self._link = GeneratorLink()
        return partial(self._serve, self._link)

    def _serve(
        self, link: GeneratorLink, start: int, on_message: OnMessage, on_exit: OnExit
    ) -> None:
        """Connect, pass each message of the generator on until the connection ends."""
        try:
            if self._connect(link):
                on_message(start, {"connected": True})
                assert link.connection is not None
                while True:
                    message, _ = link.connection.receive()
                    on_message(start, message)
        except RefusedError as error:
            problem = f"the generator at {self.place.url} {error.reason}"
            on_message(start, {"problem": problem, "hint": error.hint})
        except OSError as error:
            if not link.has_ended.is_set():
                self._note(format_reason(error))
        link.close()
        on_exit(start)

    def _connect(self, link: GeneratorLink) -> bool:
        """Connect and start to send. Return false if the link was closed before.

        Raises:
            RefusedError: the generator is of no use to this trainer.
        """
        seconds, noted = FIRST_RETRY_SECONDS, ""
        while not link.has_ended.is_set():
            try:
                connection, self.pid, host = self._greet()
            except OSError as error:
                if format_reason(error) != noted:
                    noted = format_reason(error)
                    self._note(noted)
                link.has_ended.wait(seconds)
                seconds = min(2 * seconds, MAX_RETRY_SECONDS)
                continue
            log.info("%s runs in process %d on %s (%s)", self.title, self.pid, host, self.place.url)
            link.connection = connection
            threading.Thread(target=self._write, args=(link, connection), daemon=True).start()
            if link.has_ended.is_set():  # closed meanwhile, which nobody told the connection
                connection.close()
            return True
        return False

    def _greet(self) -> tuple[FrameConnection, int, str]:
        """Connect once. Return the connection, and the process and machine of the generator."""
        connection = FrameConnection(socket.create_connection(self.place, CONNECT_SECONDS))
        try:
            connection.limit_greeting(CONNECT_SECONDS)
            greet_generator(connection, self.secret)
            hello = {"do": "hello", "generation": self.description, "run": self.run}
            connection.send(hello)
            answer, _ = connection.receive()
            if "busy" in answer:
                raise ConnectionError("it serves another trainer")
            if "differs" in answer:
                raise RefusedError(
                    f"generates with another recipe: {answer['differs']}",
                    "give titanrun fleet the same recipe and overrides",
                )
            place = int(answer["pid"]), str(answer["host"])
        except (OSError, RefusedError):
            connection.close()
            raise
        except (KeyError, TypeError, ValueError):
            connection.close()
            raise ConnectionError("it is not a titanrun of a fleet") from None
        connection.trust()
        return connection, *place

    def _write(self, link: GeneratorLink, connection: FrameConnection) -> None:
        """Send what is queued until the connection ends."""
        try:
            while (message := link.outbox.take()) is not None:
                if message["do"] == "load":
                    for header, piece in iter_weight_frames(self.find_weights(message["key"])):
                        connection.send(header, piece)
                connection.send(message)
        except OSError as error:
            if not link.has_ended.is_set():
                self._note(format_reason(error))
            link.close()

    def _note(self, line: str) -> None:
        with self.log_file.open("a", encoding="utf-8") as notes:
            notes.write(f"{time.strftime('%H:%M:%S')} {self.place.url}: {line}\n")


def format_reason(error: OSError) -> str:
    """Format why a connection failed."""
    return error.strerror or str(error)
