import sys
from pathlib import Path

import pytest

from titanrun.components.metrics.config import TensorBoardConfig
from titanrun.components.metrics.jsonl import MetricsFile, read_metrics
from titanrun.components.metrics.log import MetricLog
from titanrun.components.metrics.tensorboard import TensorBoardTracker
from titanrun.config.problems import ProblemsFound


class Remembering:
    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.is_closed = False

    def log(self, step: int, values: dict[str, float]) -> None:
        self.seen.append((step, dict(values)))
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
    log = MetricLog(MetricsFile(tmp_path / "metrics.jsonl"), trackers=trackers)
    log.log(1, {"loss": 2.0})
    log.log(2, {"loss": 1.0})
    log.close()
    for tracker in trackers.values():
        assert tracker.seen == [(1, {"loss": 2.0}), (2, {"loss": 1.0})]
        assert tracker.is_closed
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_tracker_that_fails_is_dropped_with_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing, healthy = Failing(from_step=2), Remembering()
    log = MetricLog(MetricsFile(tmp_path / "metrics.jsonl"), trackers={"remote": failing, "local": healthy})
    for step in (1, 2, 3):
        log.log(step, {"loss": 1.0})
    log.close()
    assert [step for step, _ in failing.seen] == [1, 2]
    assert [step for step, _ in healthy.seen] == [1, 2, 3]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    assert capsys.readouterr().err == (
        "warning: tracker remote failed and gets no more metrics; training goes on (ConnectionError: no route to host)\n"
    )


def test_a_tracker_that_fails_at_the_end_gives_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = MetricLog(MetricsFile(tmp_path / "metrics.jsonl"), trackers={"remote": Failing(from_step=9)})
    log.close()
    assert capsys.readouterr().err.count("warning") == 1


def test_tensorboard_curves_do_not_double_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, loss in (((1, 2, 3, 4), 1.0), ((3, 4, 5), 2.0)):
        tracker = TensorBoardTracker(TensorBoardConfig(), run_dir=tmp_path)
        for step in steps:
            tracker.log(step, {"loss": loss, "validation/loss": float("nan")})
        tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]


def test_a_run_that_logs_nothing_leaves_no_event_file(tmp_path: Path) -> None:
    TensorBoardTracker(TensorBoardConfig(), run_dir=tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_a_problem_with_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ProblemsFound) as error:
        TensorBoardTracker(TensorBoardConfig(), run_dir=tmp_path)
    (problem,) = error.value.problems
    assert (problem.code, problem.path) == ("usage", ("metrics", "trackers"))
    assert problem.message == "the tracker tensorboard needs a package that is not installed: tensorboard"
    assert problem.help == 'pip install "titanrun[tensorboard]"'
