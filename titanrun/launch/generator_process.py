"""The process of `titanrun fleet`: a bound socket, then a worker that listens at it."""

import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.config.host_port import HostPort
from titanrun.config.problems import problem_error
from titanrun.distributed.spec.run_signals import list_stop_signals

WORKER = "titanrun.worker.commands.fleet"


def bind_listener(place: HostPort) -> socket.socket:
    """Bind a socket. Nobody can connect before the worker listens.

    Raises:
        ProblemsFound: the address cannot be used.
    """
    try:
        [family, kind, protocol, _, address], *_ = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with ExitStack() as exit_stack:
            listener = exit_stack.enter_context(socket.socket(family, kind, protocol))
            # the connection of an earlier generator may linger
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            exit_stack.pop_all()
    except OSError as error:
        raise problem_error(
            "usage",
            f"cannot listen at {place}: {(error.strerror or str(error)).lower()}",
            hint="use an address of this machine and a free port; port 0 takes one",
        ) from None
    return listener


def exec_generator(
    resolved: Path,
    listener: socket.socket,
    idle_seconds: float | None,
    environment: Mapping[str, str],
) -> NoReturn:
    """Replace this process by a worker, which handles signals from its start on."""
    drain_console()
    listener.set_inheritable(True)
    signal.pthread_sigmask(signal.SIG_BLOCK, list_stop_signals())
    idle = [] if idle_seconds is None else [str(idle_seconds)]
    command = [sys.executable, "-m", WORKER, str(resolved), str(listener.fileno()), *idle]
    os.execve(sys.executable, command, dict(environment))
