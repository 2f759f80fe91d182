"""Windows of lanes that threads read ahead."""

import threading
from collections.abc import Iterator

import pytest

from titanrun.components.data.lane_windows import Window, WindowStart
from titanrun.components.data.window_prefetch import MAX_THREADS, WindowPrefetcher
from titanrun.config.problems import ProblemsFound, problem_error

SECONDS = 60


class Source:
    """Windows of one lane, which notes those that were read; `gate` holds them back."""

    def __init__(self, num_windows: int, gate: threading.Event | None = None) -> None:
        self._num_windows, self._gate = num_windows, gate
        self.was_read = [threading.Event() for _ in range(num_windows)]

    def __iter__(self) -> Iterator[Window]:
        for number in range(self._num_windows):
            if self._gate is not None:
                assert self._gate.wait(SECONDS)
            self.was_read[number].set()
            yield Window(WindowStart(window=number))


def test_the_next_window_is_read_before_it_is_asked_for_and_no_other() -> None:
    source = Source(4)
    windows = WindowPrefetcher().read_ahead(iter(source))
    assert source.was_read[0].wait(SECONDS)
    assert not source.was_read[1].is_set()
    assert next(windows).start.window == 0
    assert source.was_read[1].wait(SECONDS)
    assert not source.was_read[2].is_set()
    assert [window.start.window for window in windows] == [1, 2, 3]


def test_a_lane_goes_on_while_every_thread_waits_for_another_server() -> None:
    prefetcher, gate = WindowPrefetcher(), threading.Event()
    stalled = [prefetcher.read_ahead(iter(Source(1, gate))) for _ in range(MAX_THREADS)]
    windows = prefetcher.read_ahead(iter(Source(3)))
    assert [window.start.window for window in windows] == [0, 1, 2]
    gate.set()
    assert [len(list(lane)) for lane in stalled] == [1] * MAX_THREADS


def test_a_problem_is_raised_where_its_window_is_taken() -> None:
    def read() -> Iterator[Window]:
        yield Window(WindowStart())
        raise problem_error("data", "the server has gone", path=())

    windows = WindowPrefetcher().read_ahead(read())
    next(windows)
    with pytest.raises(ProblemsFound, match="the server has gone"):
        next(windows)
