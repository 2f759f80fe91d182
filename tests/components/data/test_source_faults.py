"""Requests that are repeated: for how long, and what is reported meanwhile."""

import time
from email.message import Message
from email.utils import formatdate

import pytest

from titanrun.components.data import source_faults
from titanrun.components.data.http_source import classify_status
from titanrun.components.data.source_faults import RetryPolicy, SourceFault, limit_timeout
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.data_waits import WaitStopped, end_waits_on, on_wait


def test_a_wait_is_reported_and_its_end_too() -> None:
    left, waits, policy = [2], [], RetryPolicy(60)

    def work() -> str:
        if left[0]:
            left[0] -= 1
            raise SourceFault("unreachable", "503", retry_after=0.0)
        return "read"

    with on_wait(waits.append):
        assert policy.request(work, name="'part.jsonl'") == "read"
        # what succeeds at once waits for nothing
        assert policy.request(work, name="'part.jsonl'") == "read"
    assert waits == ["'part.jsonl'", "'part.jsonl'", None]
    assert policy.counts.num_retries == 2


def test_a_wait_ends_when_the_run_shall_stop() -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise SourceFault("unreachable", "503", retry_after=0.01)

    with (
        end_waits_on(lambda: "SIGTERM" if len(tries) == 3 else None),
        pytest.raises(WaitStopped, match="SIGTERM"),
    ):
        RetryPolicy(20).request(work, name="'part.jsonl'")
    assert len(tries) == 3


def test_a_wait_says_when_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    left = [2]

    def work() -> None:
        if left[0]:
            left[0] -= 1
            raise SourceFault("unreachable", "503", retry_after=0.0)

    RetryPolicy(90_000).request(work, name="'part.jsonl'", advice="read the cache")
    first, second = caplog.messages
    assert first.startswith("'part.jsonl' cannot be read: 503; waiting 0.5 s for try 2, giving up")
    assert first.endswith(" in 90000 s (retry_timeout); read the cache")
    assert second.endswith(" s (retry_timeout)")


@pytest.mark.parametrize("kind", ["refused", "gone", "changed"])
def test_a_fault_that_cannot_pass_is_not_repeated(kind: str) -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise SourceFault(kind, "403")  # type: ignore[arg-type]

    with pytest.raises(ProblemsFound) as found:
        RetryPolicy(60).request(work, name="'part.jsonl'")
    assert len(tries) == 1
    assert found.value.problems[0].rule == f"source-{kind}"


def list_delays(
    monkeypatch: pytest.MonkeyPatch, count: int, retry_after: float | None
) -> list[float]:
    """Return the waits between requests of which `count` fail."""
    delays: list[float] = []
    monkeypatch.setattr(source_faults, "sleep_with_heartbeats", delays.append)

    def work() -> None:
        if len(delays) < count:
            raise SourceFault("unreachable", "429", retry_after=retry_after)

    RetryPolicy(10**6).request(work, name="'part.jsonl'")
    return delays


def test_waits_double_up_to_a_minute_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = list_delays(monkeypatch, 12, None)
    for delay, middle in zip(delays, [1, 2, 4, 8, 16, 32, *[60] * 6], strict=True):
        assert 0.75 * middle <= delay <= 1.25 * middle
    # ranks that failed together do not come back together
    assert len(set(list_delays(monkeypatch, 3, None) + delays[:3])) == 6


def test_a_server_that_says_when_to_come_back_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_delays(monkeypatch, 3, 7.0) == [7.0] * 3
    assert list_delays(monkeypatch, 2, 300.0) == [300.0] * 2
    # a clock that is late names a time that has passed: it was asked without a pause
    assert list_delays(monkeypatch, 2, 0.0) == [0.5] * 2


def test_no_wait_is_longer_than_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, delays = [0.0], list[float]()
    monkeypatch.setattr(source_faults.time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        delays.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(source_faults, "sleep_with_heartbeats", sleep)

    def work() -> None:
        raise SourceFault("unreachable", "503", retry_after=8.0)

    with pytest.raises(ProblemsFound, match="after 4 tries in 20 s"):
        RetryPolicy(20).request(work, name="'part.jsonl'")
    assert delays == [8.0, 8.0, 4.0]


def test_a_server_without_an_answer_is_given_up_soon_after_the_time_for_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, timeouts = [0.0], list[float]()
    monkeypatch.setattr(source_faults.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(source_faults, "sleep_with_heartbeats", lambda _: None)

    def work() -> None:
        timeouts.append(limit_timeout(30))
        now[0] += timeouts[-1]
        raise SourceFault("unreachable", "no answer")

    for seconds, expected in ((100, [30, 30, 30, 18]), (4, [12]), (0, [30])):
        timeouts.clear()
        with pytest.raises(ProblemsFound):
            RetryPolicy(seconds).request(work, name="'part.jsonl'")
        assert timeouts == expected
    # of a request that nobody repeats
    assert limit_timeout(30) == 30


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [(None, None, None), ("7", 7, 7), (" 7 ", 7, 7), ("soon", None, None), ("DATE", 80, 100)],
)
def test_what_a_busy_server_asks_for_is_read_from_its_header(
    text: str | None, least: float | None, most: float | None
) -> None:
    headers = Message()
    if text is not None:
        headers["Retry-After"] = (
            formatdate(time.time() + 90, usegmt=True) if text == "DATE" else text
        )
    for code in (429, 503):
        found = classify_status(code, headers)
        assert found.kind == "unreachable"
        if least is None or most is None:
            assert found.retry_after is None
        else:
            assert found.retry_after is not None and least <= found.retry_after <= most
    # what will not pass is not waited for
    assert classify_status(404, headers).retry_after is None
