"""`python -m titanrun.worker`."""

import os
import sys
from importlib import import_module
from typing import NoReturn

from titanrun.training.signals import SignalRequests

# the shell's convention for a process that Ctrl-C ended
EXIT_INTERRUPTED = 130


def main() -> int:
    """Listens for signals, then imports torch, which takes seconds, and trains. Returns the exit code."""
    try:
        with SignalRequests() as signals:
            code = int(import_module("titanrun.worker.main").main(signals=signals))
        if code and import_module("titanrun.distributed.processes").is_open():
            leave_at_once(code)
        return code
    except KeyboardInterrupt:
        sys.stderr.write("stopped at once, before the run was read\n")
        return EXIT_INTERRUPTED


def leave_at_once(code: int) -> NoReturn:
    """Ends a rank that failed: an orderly end would wait for the others, who may wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
