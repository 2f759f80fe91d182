import threading

import pytest

from titanrun.components.metrics.async_tracker import AsyncTracker


class Blocking:
    """A back end that is away until it is let go."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.build_mask: list[int] = []
        self.is_closed = False

    def log(self, step: int, values: dict[str, float]) -> None:
        assert self.back.wait(60)
        self.build_mask.append(step)

    def close(self) -> None:
        self.is_closed = True


def test_a_back_end_that_blocks_keeps_nobody_waiting_and_loses_nothing() -> None:
    away = Blocking()
    tracker = AsyncTracker(away)
    for step in range(100):
        tracker.log(step, {"loss": 1.0})
    assert away.build_mask == []
    away.back.set()
    tracker.close()
    assert away.build_mask == list(range(100))
    assert away.is_closed


def test_a_back_end_that_is_away_too_long_is_given_up() -> None:
    away = Blocking()
    tracker = AsyncTracker(away, max_queued_lines=3, timeout_seconds=0.01)
    with pytest.raises(TimeoutError, match=r"^it is 3 lines behind$"):
        for step in range(9):
            tracker.log(step, {})
    with pytest.raises(TimeoutError):
        tracker.close()
    away.back.set()


class Failing:
    def log(self, step: int, values: dict[str, float]) -> None:
        raise ConnectionError("no route to host")

    def close(self) -> None: ...


def test_what_a_back_end_raises_is_heard_at_the_end() -> None:
    tracker = AsyncTracker(Failing())
    tracker.log(1, {})
    with pytest.raises(ConnectionError, match="no route"):
        tracker.close()


def test_a_line_is_a_copy() -> None:
    away = Blocking()
    values = {"loss": 1.0}
    tracker = AsyncTracker(away)
    tracker.log(1, values)
    values.clear()
    away.back.set()
    tracker.close()
    assert away.build_mask == [1]
