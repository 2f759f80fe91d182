import os
import signal
import subprocess
import sys

import pytest

from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.training.signal_requests import SignalRequests


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU]
)
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


def test_a_closed_terminal_does_not_stop_a_run_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalRequests() as requests:
            send(signal.SIGHUP)
            assert not requests.should_stop
            assert signal.SIGHUP not in list_run_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_helper_processes_outlive_what_stops_their_trainer() -> None:
    """The trainer needs them for the save: writers of checkpoints, loading processes, vLLM."""
    code = (
        "import os, signal; from titanrun.distributed.spec.run_signals import *; "
        "ignore_run_signals(); "
        "[os.kill(os.getpid(), number) for number in (*STOP_SIGNALS, SAVE_SIGNAL)]; print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_the_handlers_of_before_come_back() -> None:
    before = [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    ]
    with SignalRequests():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    ] == before
