from pathlib import Path

import pytest

from titanrun.components.metrics.metric_logger import MetricLogger
from titanrun.components.metrics.spec.metrics_file import MetricsFile, read_metrics


class Remembering:
    def __init__(self) -> None:
        self.build_mask: list[tuple[int, dict[str, float]]] = []
        self.is_closed = False

    def log(self, step: int, values: dict[str, float]) -> None:
        self.build_mask.append((step, dict(values)))
        values.clear()

    def close(self) -> None:
        self.is_closed = True


class Failing(Remembering):
    def __init__(self, *, from_step: int) -> None:
        super().__init__()
        self.from_step = from_step

    def log(self, step: int, values: dict[str, float]) -> None:
        super().log(step, values)
        if step >= self.from_step:
            raise ConnectionError("no route to host")

    def close(self) -> None:
        raise ConnectionError("still no route")


def test_every_receiver_gets_every_step(tmp_path: Path) -> None:
    trackers = {"one": Remembering(), "two": Remembering()}
    log = MetricLogger(MetricsFile(tmp_path / "metrics.jsonl"), trackers=trackers)
    log.log(1, {"loss": 2.0})
    log.log(2, {"loss": 1.0})
    log.close()
    for tracker in trackers.values():
        assert tracker.build_mask == [(1, {"loss": 2.0}), (2, {"loss": 1.0})]
        assert tracker.is_closed
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_tracker_that_fails_is_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing, healthy = Failing(from_step=2), Remembering()
    log = MetricLogger(
        MetricsFile(tmp_path / "metrics.jsonl"), trackers={"remote": failing, "local": healthy}
    )
    for step in (1, 2, 3):
        log.log(step, {"loss": 1.0})
    log.close()
    assert [step for step, _ in failing.build_mask] == [1, 2]
    assert [step for step, _ in healthy.build_mask] == [1, 2, 3]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    (message,) = caplog.messages
    assert (
        message
        == "tracker remote failed and was disabled, training continues: ConnectionError: no "
        "route to host"
    )


def test_a_tracker_that_fails_at_the_end_gives_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MetricLogger(
        MetricsFile(tmp_path / "metrics.jsonl"), trackers={"remote": Failing(from_step=9)}
    )
    log.close()
    assert len(caplog.messages) == 1
