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
    assert watchdog.find_hang() == Hang("build", 91.0, 0, limit=90)
    watchdog.start_first_step()
    clock.now += 59
    assert watchdog.find_hang() is None
    clock.now += 2
    assert watchdog.find_hang() == Hang("first step", 61.0, 0, limit=60)
    watchdog.after_step(1)
    clock.now += 11
    assert watchdog.find_hang() == Hang("step", 11.0, 1, limit=10)
    with watchdog.watch_save():
        clock.now += 29
        assert watchdog.find_hang() is None
        clock.now += 2
        assert watchdog.find_hang() == Hang("save", 31.0, 1, limit=30)
    # the time of the save is none of the step's
    assert watchdog.find_hang() is None
    with watchdog.pause():
        clock.now += 1000
        assert watchdog.find_hang() is None
    # nor is that of a pause
    assert watchdog.find_hang() is None
    clock.now += 11
    assert watchdog.find_hang() == Hang("step", 11.0, 1, limit=10)


@pytest.mark.parametrize(
    ("configured", "last_save", "limit"),
    [
        (3600, None, 3600),
        (3600, 2.0, 300),
        (3600, 90.0, 900),
        (3600, 600.0, 3600),
        (120, 2.0, 120),
    ],
    ids=["the first", "a short one", "a long one", "a very long one", "a lower limit of the user"],
)
def test_the_limit_of_a_save_follows_from_the_last_one(
    configured: int, last_save: float | None, limit: int
) -> None:
    """Row B10 of the defect list: a rank that was stopped in a save was waited for for an hour."""
    clock = Clock()
    watchdog = Watchdog(GuardConfig(save_timeout_seconds=configured), clock=clock)
    with watchdog.watch_save(last_save):
        clock.now += limit
        assert watchdog.find_hang() is None
        clock.now += 1
        found = watchdog.find_hang()
        assert found is not None
        assert (found.phase, found.limit) == ("save", limit)
        assert (found.last_save_seconds is None) == (limit == configured)
    # of another kind of block, which may do more than a save
    with watchdog.watch_save():
        clock.now += configured
        assert watchdog.find_hang() is None


def test_a_save_without_a_limit_never_gets_one() -> None:
    clock = Clock()
    watchdog = Watchdog(GuardConfig(save_timeout_seconds=None), clock=clock)
    with watchdog.watch_save(1.0):
        clock.now += 1e6
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
