"""`python -m titanrun.worker`."""

import sys
from importlib import import_module

from titanrun.training.signals import SignalRequests

# the shell's convention for a process that Ctrl-C ended
EXIT_INTERRUPTED = 130


def main() -> int:
    """Listens for signals, then imports torch, which takes seconds, and trains. Returns the exit code."""
    try:
        with SignalRequests() as signals:
            return int(import_module("titanrun.worker.main").main(signals=signals))
    except KeyboardInterrupt:
        sys.stderr.write("stopped at once, before the run was read\n")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
