"""Entry point `python -m titanrun.worker` of one training rank."""

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from titanrun.components.metrics.spec.console_stream import (
    drain_console,
    protect_stderr,
    protect_stdout,
)
from titanrun.config.exit_codes import EXIT_INTERRUPTED
from titanrun.config.lazy_module import LazyModule
from titanrun.distributed.rank_env import set_allocator_default, set_compile_cache_default
from titanrun.training.signal_requests import SignalRequests

if TYPE_CHECKING:
    from titanrun.distributed import process_group
    from titanrun.worker import rank_main as worker_main
else:
    # imports of torch, which take seconds
    process_group = LazyModule("titanrun.distributed.process_group")
    worker_main = LazyModule("titanrun.worker.rank_main")


def main() -> int:
    """Install signal handlers, then import torch, which takes seconds, and train.

    Return the exit code.
    """
    protect_stdout()
    protect_stderr()
    set_allocator_default()
    set_compile_cache_default()
    try:
        with SignalRequests() as signals:
            code = worker_main.main(signals=signals)
        if code and process_group.is_process_group_initialized():
            exit_immediately(code)
        return code
    except KeyboardInterrupt:
        sys.stderr.write("stopped immediately, before the run was read\n")
        return EXIT_INTERRUPTED


def exit_immediately(code: int) -> NoReturn:
    """End a failed rank immediately.

    A regular exit would wait for the other ranks, which may wait for this one.
    """
    drain_console()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
