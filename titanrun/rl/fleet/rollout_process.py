"""One process of the fleet: a line of JSON for each message, in both directions."""

import json
import logging
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from titanrun.config.json_text import parse_json
from titanrun.rl.fleet.fleet_process import STOP_SECONDS, FleetProcess, OnExit, OnMessage
from titanrun.rl.fleet.named_pipes import NamedPipes
from titanrun.rl.fleet.rollout_messages import count_done_groups

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessConnection:
    """Both directions to a process. `process` is None if an earlier trainer started it."""

    pid: int
    requests: IO[str]
    responses: IO[str]
    process: "subprocess.Popen[str] | None"
    # an adopted process repeats it. What it says before is for the earlier trainer
    token: str | None = None
    has_ended: threading.Event = field(default_factory=threading.Event)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. A process that has ended gets nothing: its end is reported elsewhere."""
        with suppress(OSError, ValueError):
            self.requests.write(json.dumps(message) + "\n")
            self.requests.flush()

    def kill(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(slots=True, kw_only=True)
class RolloutProcess(FleetProcess):
    """Child process of this trainer, or of an earlier one.

    Args:
        command: the program and its arguments.
        environment: environment variables.
        pipes: pipes with names, through which the next trainer finds it again. None: it ends with
            this trainer.
        stop_seconds: seconds that it gets to end by itself.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    pipes: NamedPipes | None = None
    stop_seconds: float = STOP_SECONDS
    _connection: ProcessConnection | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        connection = self._connection
        if connection is None or connection.has_ended.is_set():
            return False
        return connection.process is None or connection.process.poll() is None

    @property
    def pid(self) -> int | None:
        """Id of the process, None without one."""
        return None if self._connection is None else self._connection.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. A process that has ended gets nothing: its end is reported elsewhere."""
        assert self._connection is not None
        self._connection.send(message)

    def kill(self) -> None:
        """End the process at once. Its end is reported as any other."""
        if self._connection is not None:
            self._connection.kill()

    def close(self) -> None:
        """End the process: first by a message, then by force."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.send({"do": "stop"})
        if not connection.has_ended.wait(self.stop_seconds):
            connection.kill()
            connection.has_ended.wait(STOP_SECONDS)
        with suppress(OSError):  # closing flushes what the process did not read
            connection.requests.close()
        if self.pipes is not None:
            self.pipes.remove()

    def _open(self) -> Callable[[int, OnMessage, OnExit], None]:
        self._connection = self._adopt() or self._spawn()
        return partial(read_messages, self._connection)

    def _adopt(self) -> ProcessConnection | None:
        """Connect to the process of an earlier trainer, once."""
        if self.pipes is None or self.num_starts > 1:
            return None
        pid = self.pipes.find_pid()
        ends = None if pid is None else self.pipes.connect()
        if pid is None or ends is None:
            return None
        connection = ProcessConnection(pid, *ends, None, token=uuid.uuid4().hex)
        with suppress(OSError):
            # the earlier trainer may have ended within a line
            connection.requests.write("\n")
        connection.send({"do": "hello", "token": connection.token})
        log.info("%s goes on in process %d", self.title, pid)
        return connection

    def _spawn(self) -> ProcessConnection:
        ends = None if self.pipes is None else self.pipes.create()
        with self.log_file.open("a", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [*self.command, *self._list_arguments()],
                stdin=subprocess.PIPE if ends is None else ends[0],
                stdout=subprocess.PIPE if ends is None else ends[1],
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=dict(self.environment),
                # it outlives the group of this trainer
                start_new_session=self.pipes is not None,
                pass_fds=() if self.pipes is None else (self.pipes.lifeline,),
            )
        log.info("%s runs in process %d, log file: %s", self.title, process.pid, self.log_file)
        if ends is None or self.pipes is None:
            assert process.stdin is not None and process.stdout is not None
            return ProcessConnection(process.pid, process.stdin, process.stdout, process)
        connected = self.pipes.connect()
        for end in ends:
            os.close(end)
        assert connected is not None, "the descriptors for the process were open"
        self.pipes.write_note(process.pid)
        return ProcessConnection(process.pid, *connected, process)

    def _list_arguments(self) -> list[str]:
        if self.pipes is None:
            return []
        return [str(self.pipes.lifeline), str(self.pipes.lock_file)]


def read_messages(
    connection: ProcessConnection,
    start: int,
    on_message: OnMessage,
    on_exit: OnExit,
) -> None:
    """Pass each message of a process on until it ends, then report its end.

    Of what it says to an earlier trainer only the number of groups that are done is passed on.
    """
    token, num_discarded = connection.token, 0
    for line in connection.responses:
        if token is None:
            message = parse_json(line)
            assert isinstance(message, dict), "our own program writes objects"
            on_message(start, message)
        elif token in line:
            token = None
            on_message(start, {"discarded": num_discarded})
        else:
            with suppress(ValueError):  # the earlier trainer has read a part of the line
                num_discarded += count_done_groups(parse_json(line))
    if connection.process is not None:
        connection.process.wait()
    connection.responses.close()
    connection.has_ended.set()
    on_exit(start)
