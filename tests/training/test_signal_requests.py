import os
import signal

import pytest

from titanrun.training.signal_requests import SignalRequests


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_first_signal_asks_for_a_stop(number: signal.Signals) -> None:
    with SignalRequests() as requests:
        assert not requests.should_stop
        send(number)
        assert requests.should_stop
        assert requests.stop_signal == number.name
        assert not requests.pop_save_request()


def test_sigusr2_asks_for_one_save() -> None:
    with SignalRequests() as requests:
        send(signal.SIGUSR2)
        assert [requests.pop_save_request(), requests.pop_save_request()] == [True, False]
        assert not requests.should_stop


def test_a_second_ctrl_c_stops_at_once() -> None:
    with SignalRequests() as requests:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert requests.should_stop


def test_the_handlers_of_before_come_back() -> None:
    before = [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    ]
    with SignalRequests():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    ] == before
