"""Lighthouse of a run's replica groups, as a process: `python -m titanrun.worker.lighthouse`.

It listens on one address, prints that, and outlives its launcher for the last saves.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

from torchft.coordination import LighthouseServer

from titanrun.distributed.spec.run_signals import ignore_run_signals

STDOUT = 1
# after the death of the launcher the groups agree on a last step
LAST_STEP_SECONDS = 300


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is killed, or for some time after SIGTERM.

    Args:
        arguments: address of this machine, port (0: a free one), groups that a step needs, and
            milliseconds that a step waits for a group that is alive, and after which a silent group
            counts as lost.
    """
    host = arguments[0]
    port, min_groups, join_timeout_ms, heartbeat_timeout_ms = map(int, arguments[1:])
    ignore_run_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = LighthouseServer(
        f"{host}:{port}",
        min_groups,
        join_timeout_ms=join_timeout_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )
    # its own address holds the name of the machine, which may not resolve
    address = f"http://{host}:{server.address().rpartition(':')[2]}\n"
    try:
        os.write(STDOUT, address.encode())
    except BrokenPipeError:
        # the launcher died during the start, before there was a group
        return
    signal.sigwait([signal.SIGTERM])
    time.sleep(LAST_STEP_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
