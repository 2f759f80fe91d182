import threading

import pytest

from titanrun.training.config import GuardConfig
from titanrun.training.watchdog import Hang, Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_each_phase_has_its_own_limit() -> None:
    clock = Clock()
    config = GuardConfig(
        build_timeout_seconds=90,
        first_step_timeout_seconds=60,
        step_timeout_seconds=10,
        save_timeout_seconds=30,
    )
    watchdog = Watchdog(config, clock=clock)
    clock.now += 91
    assert watchdog.find_hang() == Hang("build", 91.0, 0)
    watchdog.start_first_step()
    clock.now += 59
    assert watchdog.find_hang() is None
    clock.now += 2
    assert watchdog.find_hang() == Hang("first step", 61.0, 0)
    watchdog.after_step(1)
    clock.now += 11
    assert watchdog.find_hang() == Hang("step", 11.0, 1)
    with watchdog.watch_save():
        clock.now += 29
        assert watchdog.find_hang() is None
        clock.now += 2
        assert watchdog.find_hang() == Hang("save", 31.0, 1)
    # the time of the save is none of the step's
    assert watchdog.find_hang() is None


def test_a_sign_of_life_begins_the_time_anew() -> None:
    clock = Clock()
    watchdog = Watchdog(GuardConfig(build_timeout_seconds=10), clock=clock)
    for _ in range(5):
        clock.now += 9
        watchdog.record_heartbeat()
    assert watchdog.find_hang() is None


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_no_limit_means_no_hang(seconds: float) -> None:
    clock = Clock()
    watchdog = Watchdog(GuardConfig(build_timeout_seconds=None), clock=clock)
    clock.now += seconds
    assert watchdog.find_hang() is None


def test_a_hang_is_told_once_and_from_another_thread() -> None:
    told: list[tuple[Hang, str]] = []
    heard = threading.Event()
    clock = Clock()

    def hear(hang: Hang) -> None:
        told.append((hang, threading.current_thread().name))
        heard.set()

    with Watchdog(GuardConfig(build_timeout_seconds=1), hear, clock):
        clock.now += 5
        assert heard.wait(30)
    assert [(hang.phase, name) for hang, name in told] == [("build", "watchdog")]
