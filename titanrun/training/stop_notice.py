"""Notices that a signal to stop has arrived, at once and not only after the current step."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from titanrun.components.metrics.spec.console_stream import start_without_signals
from titanrun.distributed.spec.run_signals import STOP_SIGNALS, format_stop_notice
from titanrun.training.signal_requests import SignalRequests

# no signal has this number
END = 0

log = logging.getLogger(__name__)


@contextmanager
def announce_stops(requests: SignalRequests) -> Iterator[None]:
    """Log the first signal of each kind that asks for a stop, in the block.

    A thread does so, which Python tells the number of each signal: the handlers run only after a
    call of torch has ended, which may take as long as the step.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(
        target=log_stops, args=(reader, requests), name="stop-notice", daemon=True
    )
    start_without_signals(thread)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        # forked processes may hold the pipe open: closing it would not end the thread
        os.set_blocking(writer, True)
        os.write(writer, bytes([END]))
        thread.join()
        os.close(writer)
        os.close(reader)


def log_stops(reader: int, requests: SignalRequests) -> None:
    """Log the first signal of each kind, by the numbers in the pipe `reader`, until END."""
    logged: set[int] = set()
    while (number := os.read(reader, 1)[0]) != END:
        if number in STOP_SIGNALS and number not in logged:
            logged.add(number)
            requests.arrived_stop = requests.arrived_stop or signal.Signals(number).name
            log.info("%s", format_stop_notice(signal.Signals(number), requests.stop_effect))
