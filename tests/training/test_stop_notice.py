"""The line that answers a signal to stop, at once."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from titanrun.distributed.spec.run_signals import STOPS_AFTER_STEP
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.stop_notice import announce_stops

AFTER_CTRL_C = "stopping after this step, then saving; Ctrl-C again stops at once, without saving"


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Messages of the notice, as they come."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, listener = logging.getLogger("titanrun.training.stop_notice"), Listener()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(listener)
    yield found
    logger.removeHandler(listener)
    logger.setLevel(before)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_line_comes_before_the_step_and_its_handlers_end(lines: list[str]) -> None:
    """While a step is in one call of torch, Python runs no handler; here it is blocked as well."""
    with SignalRequests() as requests:
        requests.stop_effect = STOPS_AFTER_STEP
        ended: list[bool] = []

        def receive_slowly(number: int, frame: object) -> None:
            wait_for(lambda: lines)
            ended.append(True)

        signal.signal(signal.SIGINT, receive_slowly)
        with announce_stops(requests):
            os.kill(os.getpid(), signal.SIGINT)
            assert ended
        # a wait for data of another rank is such a call too
        assert (requests.stop_signal, requests.find_stop()) == (None, "SIGINT")
    assert lines == [AFTER_CTRL_C]


def test_each_kind_of_signal_has_one_line_and_a_save_has_none(lines: list[str]) -> None:
    with SignalRequests() as requests:
        requests.stop_effect = STOPS_AFTER_STEP
        with announce_stops(requests):
            for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
    assert lines == ["SIGTERM: stopping after this step, then saving", AFTER_CTRL_C]


def test_what_was_told_of_signals_before_is_told_again() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outer = signal.set_wakeup_fd(writer)
    try:
        with SignalRequests() as requests, announce_stops(requests):
            pass
        assert signal.set_wakeup_fd(outer) == writer
    finally:
        signal.set_wakeup_fd(outer)
        os.close(reader)
        os.close(writer)
