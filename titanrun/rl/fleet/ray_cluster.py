"""The Ray that runs the actors of a fleet: one of this run alone, or a cluster that it joins."""

import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.rl.fleet.ray_options import build_init_options, build_join_options

# Ray puts Unix sockets in its folder, whose path has at most 107 bytes
SHORT_FOLDER = "/tmp"
ADDRESS_PATH = ("rl", "fleet", "address")
# Ray itself tries for minutes
CONNECT_SECONDS = 10.0


def open_cluster(address: str | None, exit_stack: ExitStack) -> str:
    """Start Ray, or join the cluster at an address, until the exit stack closes.

    Return the address at which other processes of this machine join it.

    Raises:
        ProblemsFound: no cluster answers, or none can be started.
    """
    if address is not None:
        join_cluster(address, exit_stack)
    else:
        folder = exit_stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="titanrun-ray-", dir=SHORT_FOLDER, ignore_cleanup_errors=True
            )
        )
        connect(build_init_options(folder), exit_stack)
    return str(ray.get_runtime_context().gcs_address)


def join_cluster(address: str, exit_stack: ExitStack) -> None:
    """Join the cluster at an address, until the exit stack closes.

    A Ray that this process uses already stays as it is.

    Raises:
        ProblemsFound: no cluster answers.
    """
    if not ray.is_initialized():
        check_address(address)
        connect(build_join_options(address), exit_stack)


def connect(options: dict[str, Any], exit_stack: ExitStack) -> None:
    """Call `ray.init` with these arguments, and `ray.shutdown` when the exit stack closes.

    Raises:
        ProblemsFound: it failed.
    """
    exit_stack.callback(ray.shutdown)
    try:
        with keep_run_signals():
            ray.init(**options)
    except (OSError, RuntimeError, ValueError) as error:
        raise build_address_error(str(error).strip().splitlines()[0]) from error


def check_address(address: str) -> None:
    """Connect to a host and port once.

    Raises:
        ProblemsFound: nobody listens there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise build_address_error(f"nobody answers at {address}: {error}") from None


def build_address_error(reason: str) -> ProblemsFound:
    """Build the problem of a Ray that cannot be reached or started."""
    return problem_error(
        "usage",
        f"Ray cannot be reached or started: {reason}",
        path=ADDRESS_PATH,
        hint="join this machine first: ray start --address=HOST:PORT",
    )


@contextmanager
def keep_run_signals() -> Iterator[None]:
    """Keep signals of the run from processes that start within the block, and their handlers here.

    They often reach all processes of a run. The trainer still needs its actors for the save, and
    Ray would end it at once.
    """
    handlers = {number: signal.getsignal(number) for number in list_run_signals()}
    # Ray's processes inherit the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
