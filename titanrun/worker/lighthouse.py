"""Lighthouse of a run's replica groups, as a process: `python -m titanrun.worker.lighthouse`.

It listens on one address, prints that, and outlives its launcher for the last saves. It may have
replaced another one: before its first quorum it waits until it has heard of every group.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from titanrun.config.diagnostics import render_problems
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.spec.run_signals import ignore_run_signals

if TYPE_CHECKING:
    from torchft import coordination as coordination
else:
    # without it, the command says so
    coordination = LazyModule("torchft.coordination")

STDOUT = 1
NUM_ARGUMENTS = 5
# after the death of the launcher the groups agree on a last step
LAST_STEP_SECONDS = 300
CONNECT_SECONDS = 60
# a replica of this name is heard of once
START_REPLICA = "titanrun_start"


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is killed, or for some time after SIGTERM.

    Args:
        arguments: address of this machine, port (0: a free one), groups that a step needs, and
            milliseconds that a step waits for a group that is alive, and after which a silent group
            counts as lost.

    Raises:
        ProblemsFound: torchft is not installed, an argument is wrong, or the port is taken.
    """
    check_can_start(arguments)
    host = arguments[0]
    port, min_groups, join_timeout_ms, heartbeat_timeout_ms = map(int, arguments[1:])
    ignore_run_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        server = coordination.LighthouseServer(
            f"{host}:{port}",
            min_groups,
            join_timeout_ms=join_timeout_ms,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
        )
    except RuntimeError as error:
        raise problem_error("usage", f"cannot listen on {host}:{port}: {error}") from None
    # its own address holds the name of the machine, which may not resolve
    address = f"http://{host}:{server.address().rpartition(':')[2]}"
    hold_first_quorum(address)
    try:
        os.write(STDOUT, f"{address}\n".encode())
    except BrokenPipeError:
        # the launcher died during the start, before there was a group
        return
    signal.sigwait([signal.SIGTERM])
    time.sleep(LAST_STEP_SECONDS)


def hold_first_quorum(address: str) -> None:
    """Delay the first quorum by the time after which a silent group counts as lost.

    Groups report to a new lighthouse every 100 ms. One that starts before the others have would
    train alone. A quorum needs more than half of the replicas that were heard of, and waits for the
    rest: it waits for one that does not come until that counts as lost.
    """
    client = coordination.LighthouseClient(
        address, connect_timeout=timedelta(seconds=CONNECT_SECONDS)
    )
    client.heartbeat(START_REPLICA)


def check_can_start(arguments: Sequence[str]) -> None:
    """Raise a usage problem if torchft is missing, or an argument is wrong."""
    try:
        _ = coordination.LighthouseServer
    except ModuleNotFoundError:
        raise problem_error(
            "usage",
            "a lighthouse needs the package 'torchft', which is not installed",
            hint='pip install "titanrun[torchft]"',
        ) from None
    if len(arguments) != NUM_ARGUMENTS or not all(map(str.isdecimal, arguments[1:])):
        raise problem_error(
            "usage",
            "the arguments are ADDRESS PORT GROUPS JOIN_MS HEARTBEAT_MS, whole numbers but the "
            "first",
            hint="min_replica_size, join_timeout_ms and heartbeat_timeout_ms of the recipe",
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ProblemsFound as found:
        sys.stderr.write(render_problems(found.problems))
        sys.exit(found.exit_code)
