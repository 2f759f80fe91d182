"""The Ray that runs the actors of a fleet: one of this run alone, or a cluster that it joins."""

import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import ray

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.rl.fleet.config import FleetConfig
from titanrun.rl.fleet.ray_options import build_init_options, check_resources

# Ray puts Unix sockets in its folder, whose path has at most 107 bytes
SHORT_FOLDER = "/tmp"
# Ray itself tries for minutes
CONNECT_SECONDS = 10.0


def open_cluster(config: FleetConfig, exit_stack: ExitStack) -> None:
    """Start Ray or join the cluster, until the exit stack closes.

    A Ray that this process uses already stays as it is.

    Raises:
        ProblemsFound: no cluster answers, or it lacks resources.
    """
    if not ray.is_initialized():
        folder = None
        if config.address is None:
            folder = exit_stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="titanrun-ray-", dir=SHORT_FOLDER, ignore_cleanup_errors=True
                )
            )
        else:
            check_address(config.address)
        exit_stack.callback(ray.shutdown)
        try:
            with keep_run_signals():
                ray.init(**build_init_options(config, folder))
        except (OSError, RuntimeError, ValueError) as error:
            raise build_address_error(str(error).strip().splitlines()[0]) from error
    check_resources(config, ray.cluster_resources())


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
        path=("rl", "fleet", "address"),
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
